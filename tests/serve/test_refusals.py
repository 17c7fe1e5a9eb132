"""What is not supported is refused by its name, never ignored; and who may not come in stays outside."""

from __future__ import annotations

import json
import logging
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.errors import EngineError
from starsd_jetson.serve.app import MAX_BODY_BYTES
from starsd_jetson.serve.door import DoorRules
from starsd_jetson.serve.schema import HARMLESS, NEUTRAL, ChatBody, CompletionBody, ResponsesBody
from starsd_jetson.serve.server import ServeSettings
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import EchoEngine
from tests.support.served import DEADLINE_S, Served

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "small", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"model": "small", "prompt": "hi"},
    RESPONSE: {"model": "small", "input": "hi"},
}
PATHS = pytest.mark.parametrize("path", GOOD)


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


def form(schema: Any) -> dict[str, Any]:
    """Of an answer; without a schema where that is `...`."""
    named = {"name": "x"} if schema is ... else {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


EVERYWHERE: list[tuple[str | None, dict[str, Any]]] = [
    ("model", {"model": "other"}),
    ("model", {"model": None}),
    ("nonsense", {"nonsense": 1}),
    ("Temperature", {"Temperature": 1}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 2}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("frequency_penalty", {"frequency_penalty": -2.5}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("logit_bias", {"logit_bias": {"260": 1}}),
    ("logit_bias", {"logit_bias": {"5": "x"}}),
    ("logit_bias", {"logit_bias": {"5": 1, "05": 2}}),
    ("stop", {"stop": 5}),
    ("stop[1]", {"stop": ["a", 5]}),
    ("temperature", {"temperature": 10**400}),
    ("tool_choice", {"tool_choice": 5}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("min_tokens", {"min_tokens": -1}),
    ("seed", {"seed": 1.5}),
    ("seed", {"seed": True}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": ["a"] * 17}),
    ("stream", {"stream": "yes"}),
    ("store", {"store": True}),
    ("service_tier", {"service_tier": "flex"}),
]
ONLY: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "messages", {"messages": []}),
    (CHAT, "messages", {"messages": None}),
    (CHAT, "messages[0].role", {"messages": [{"role": "robot", "content": "hi"}]}),
    (CHAT, "messages[0].content", said(None)),
    (CHAT, "messages[0].content", said(5)),
    (CHAT, "messages[0].content[0].type", said([{"type": "image_url", "image_url": {"url": "x"}}])),
    (CHAT, "messages[0].content[0].extra", said([{"type": "text", "text": "a", "extra": 1}])),
    (CHAT, "messages[0].audio", said("a", audio={"id": "x"})),
    (CHAT, "messages[0].tool_calls", said("a", tool_calls=[{"id": "a", "function": {"name": "f", "arguments": ""}}])),
    (CHAT, "messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    (CHAT, "max_tokens", {"max_tokens": 0}),
    (CHAT, "max_completion_tokens", {"max_completion_tokens": -3}),
    (CHAT, "min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    (CHAT, "n", {"n": 0}),
    (CHAT, "n", {"n": 17}),
    (CHAT, "logprobs", {"logprobs": 3}),
    (CHAT, "top_logprobs", {"top_logprobs": 3}),
    (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    (CHAT, "stream_options", {"stream_options": {"include_usage": True}}),
    (CHAT, "stream_options.more", {"stream": True, "stream_options": {"more": True}}),
    (CHAT, "response_format.type", {"response_format": {"type": "xml"}}),
    (CHAT, "response_format", {"response_format": {"type": "json_schema"}}),
    (
        CHAT,
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ),
    (CHAT, "response_format", form({"type": "nothing"})),
    (CHAT, "response_format", form({"$ref": "http://elsewhere.example/schema"})),
    (CHAT, "response_format", form({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
    (CHAT, "response_format", form(False)),
    (CHAT, "response_format.json_schema.schema", form([])),
    (CHAT, "response_format", {"response_format": "json"}),
    (CHAT, "n", {"n": 10**30}),
    (CHAT, "n", {"n": "2"}),
    (CHAT, "ignore_eos", form({"type": "object"}) | {"ignore_eos": True}),
    (CHAT, "tool_choice", {"tool_choice": "required"}),
    (CHAT, "tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (CHAT, "tools[0].type", {"tools": [{"type": "web_search"}]}),
    (CHAT, "tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    (CHAT, "functions", {"functions": [{"name": "f"}]}),
    (CHAT, "modalities", {"modalities": ["text", "audio"]}),
    (CHAT, "reasoning_effort", {"reasoning_effort": "high"}),
    (CHAT, "prediction", {"prediction": {"type": "content", "content": "x"}}),
    (CHAT, "input", {"input": "x"}),
    (COMPLETION, "prompt", {"prompt": ""}),
    (COMPLETION, "prompt", {"prompt": []}),
    (COMPLETION, "prompt", {"prompt": ["a", 5]}),
    (COMPLETION, "prompt", {"prompt": [5, 260]}),
    (COMPLETION, "prompt", {"prompt": [-1]}),
    (COMPLETION, "prompt", {"prompt": "a" * 128}),
    (COMPLETION, "n", {"prompt": ["a"] * 9, "n": 2}),
    (COMPLETION, "logprobs", {"logprobs": 21}),
    (COMPLETION, "logprobs", {"logprobs": True}),
    (COMPLETION, "parallel_tool_calls", {"parallel_tool_calls": False}),
    (COMPLETION, "echo", {"echo": True}),
    (COMPLETION, "suffix", {"suffix": "end"}),
    (COMPLETION, "best_of", {"best_of": 3}),
    (RESPONSE, "input", {"input": []}),
    (RESPONSE, "input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
    (RESPONSE, "input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    (RESPONSE, "input[0].output", {"input": [{"type": "function_call_output", "call_id": "x"}]}),
    (RESPONSE, "max_output_tokens", {"max_output_tokens": 0}),
    (RESPONSE, "previous_response_id", {"previous_response_id": "resp_1"}),
    (RESPONSE, "conversation", {"conversation": "conv_1"}),
    (RESPONSE, "background", {"background": True}),
    (RESPONSE, "truncation", {"truncation": "auto"}),
    (RESPONSE, "reasoning", {"reasoning": {"effort": "low"}}),
    (RESPONSE, "text.format", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    (RESPONSE, "text.format", {"text": {"format": {"type": "json_object", "schema": {}}}}),
    (RESPONSE, "text.verbosity", {"text": {"verbosity": "low"}}),
    (RESPONSE, "include[0]", {"include": ["reasoning.encrypted_content"]}),
    (RESPONSE, "tools[0].type", {"tools": [{"type": "web_search", "name": "x"}]}),
    (RESPONSE, "n", {"n": 2}),
    (RESPONSE, "metadata", {"metadata": {"a": 5}}),
    (RESPONSE, "text.format", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "("}}}}),
]


@PATHS
@pytest.mark.parametrize(("param", "change"), EVERYWHERE, ids=str)
def test_a_wrong_field_is_refused_by_its_name(
    echo: Served, path: str, param: str | None, change: dict[str, Any]
) -> None:
    refused = echo.ask(path, GOOD[path] | change)
    assert (refused.status, refused.error["param"]) == (404 if change.get("model") else 400, param), refused
    assert refused.error.keys() == {"message", "type", "param", "code"}
    assert refused.error["type"] == ("not_found_error" if change.get("model") else "invalid_request_error")
    assert len(refused.error["message"].splitlines()) == 1


@pytest.mark.parametrize(("path", "param", "change"), ONLY, ids=str)
def test_a_field_of_one_endpoint_is_refused_by_its_name(
    echo: Served, path: str, param: str, change: dict[str, Any]
) -> None:
    refused = echo.ask(path, GOOD[path] | change)
    assert (refused.status, refused.error["param"]) == (400, param), refused
    assert refused.error["message"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (said([{"type": "image_url", "image_url": {"url": "x"}}]), "only text is supported"),
        ({"tools": [{"type": "web_search"}]}, "only functions are supported"),
        ({"tool_choice": {"type": "allowed_tools"}}, "only functions are supported"),
        ({"tool_choice": "f"}, 'it is "auto", "none", "required" or an object that names a function'),
    ],
    ids=str,
)
def test_a_refusal_says_what_there_is(echo: Served, change: dict[str, Any], hint: str) -> None:
    assert hint in echo.ask(CHAT, GOOD[CHAT] | change).error["message"]


@PATHS
def test_no_value_of_any_field_is_a_fault_of_the_server(echo: Served, path: str) -> None:
    """It is answered, or refused by the name of the field; of another only where the two do not go together."""
    kind = {CHAT: ChatBody, COMPLETION: CompletionBody, RESPONSE: ResponsesBody}[path]
    values: list[Any] = [True, -1, 3, 10**30, 0.5, 1e308, "", "x", "auto", [], ["x"], [5], [None], {}, {"5": 1}]
    values += [{"type": "text"}, [{"type": "function"}], [[1]], {"type": "function", "name": "f"}]
    limit = "max_output_tokens" if path == RESPONSE else "max_tokens"
    pairs = {"max_completion_tokens": "max_tokens"}
    outcomes = set()
    for field in {*kind.__struct_fields__, *NEUTRAL, *HARMLESS, "functions", "reasoning_effort"}:
        for value in values:
            reply = echo.ask(path, {**GOOD[path], limit: 2, field: value})
            outcomes.add(reply.status)
            assert reply.status in (200, 400, 404), (field, value, reply)
            if reply.status != 200:
                named = str(reply.error["param"]).partition(".")[0].partition("[")[0]
                assert named in (field, pairs.get(field)), (field, value, reply)
    assert outcomes == {200, 400, 404}


@PATHS
def test_null_is_not_given_and_what_changes_no_answer_is_taken(echo: Served, path: str) -> None:
    body = GOOD[path] | {"temperature": 0}
    fields = {"temperature", "stop", "seed", "logit_bias", "top_p", "user", "tools", "reasoning_effort", "nonsense"}
    assert echo.ask(path, GOOD[path] | dict.fromkeys(fields)).status == 200
    neutral = {name: values[0] for name, values in NEUTRAL.items()}
    assert echo.ask(path, body | neutral | dict.fromkeys(HARMLESS, "x") | {"metadata": {"a": "b"}}).status == 200
    assert echo.ask(path, body | {"seed": -5, "top_k": -1}).status == 200


@PATHS
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"a": NaN}'], ids=range(7))
def test_what_is_no_json_object_is_refused(echo: Served, path: str, body: bytes) -> None:
    refused = echo.ask(path, body)
    assert refused.status == 400
    assert "JSON" in refused.error["message"]


def test_a_prompt_longer_than_the_context_is_told_from_other_mistakes(echo: Served) -> None:
    refused = echo.ask(CHAT, GOOD[CHAT] | said("x" * 200))
    assert (refused.status, refused.error["code"], refused.error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert "128" in refused.error["message"]


def test_what_no_route_takes_is_an_error_in_the_same_shape(echo: Served) -> None:
    assert (echo.page("/v1/embeddings").status, echo.page(CHAT).status) == (404, 405)
    assert echo.page("/v1/embeddings").error["type"] == "not_found_error"
    assert echo.page(CHAT).headers["allow"] == "POST"
    assert echo.ask("/chat/completions", GOOD[CHAT]).error["message"].endswith("did you mean /v1/chat/completions?")
    assert echo.page("/v1/models/other").error["code"] == "model_not_found"
    assert echo.page("/v1/models/small").body["id"] == "small"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(echo: Served) -> None:
    connection = HTTPConnection("127.0.0.1", echo.port, timeout=DEADLINE_S)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()  # and not a byte of it
    assert connection.getresponse().status == 413
    connection.close()

    def parts() -> Any:
        yield from [b"x" * 2**20] * 12

    connection = HTTPConnection("127.0.0.1", echo.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", CHAT, parts(), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    except OSError:  # it stopped reading, and was gone before the answer was seen
        pass
    finally:
        connection.close()
    assert echo.page("/health").status == 200


def test_keys_are_asked_for_everywhere_but_at_health(serve_echo: ServeEcho) -> None:
    server = serve_echo(settings=ServeSettings(door=DoorRules(keys=("first", "second"))))
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "first"},
        {"Authorization": "Basic first"},
    ):
        refused = server.page("/v1/models", headers)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert server.page("/metrics", headers).status == 401
        assert server.ask(CHAT, GOOD[CHAT], headers).status == 401
    for key in ("first", "second"):
        assert server.page("/v1/models", {"Authorization": f"Bearer {key}"}).status == 200
    assert server.page("/health").body == {"status": "ok", "hub": "none"}
    assert server.page("/v1/models", {"Authorization": "bearer second", "Host": "board:8318"}).status == 200


def test_without_keys_only_the_names_of_this_machine_are_answered_to(echo: Served) -> None:
    """A page may reach loopback under a name of its own, which points here."""
    assert echo.page("/v1/models", {"Host": "evil.example"}).status == 421
    assert echo.page("/v1/models", {"Host": f"localhost:{echo.port}"}).status == 200


def test_what_a_client_sends_does_not_get_into_the_log_as_it_is(echo: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert echo.page("/v1/%0A%1b[31mERROR").status == 404
    assert echo.ask(CHAT, GOOD[CHAT] | said("whisper") | {"temperature": 0}).status == 200
    assert echo.ask(CHAT, GOOD[CHAT] | said("whisper", extra="whisper")).status == 400
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("starsd_")]
    assert [line.rpartition(" ")[2] for line in lines if "/v1/" in line] == ["404", "200", "400"]
    assert not [line for line in lines if "\n" in line or "\x1b" in line or "whisper" in line]


def test_pages_of_another_origin_are_let_in_where_they_are_named(serve_echo: ServeEcho, echo: Served) -> None:
    page = {"Origin": "https://chat.example"}
    for origin in ("https://chat.example", "null", "http://[", f"http://127.0.0.1:{echo.port + 1}"):
        assert echo.ask(CHAT, GOOD[CHAT], {"Origin": origin}).status == 403
    assert echo.ask(CHAT, GOOD[CHAT], {"Origin": f"http://127.0.0.1:{echo.port}"}).status == 200, "its own page"
    server = serve_echo(settings=ServeSettings(door=DoorRules(("key",), ("https://chat.example",))))
    asks = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = server.ask(CHAT, None, asks, "OPTIONS")
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
    answered = server.ask(CHAT, GOOD[CHAT], page | {"Authorization": "Bearer key"})
    assert answered.headers["access-control-allow-origin"] == "https://chat.example"
    assert server.ask(CHAT, GOOD[CHAT], page).headers["access-control-allow-origin"] == "https://chat.example"
    assert server.page("/v1/models", {"Origin": "https://evil.example", "Authorization": "Bearer key"}).status == 403
    everybody = serve_echo(settings=ServeSettings(door=DoorRules(origins=("*",))))
    assert everybody.ask(CHAT, GOOD[CHAT], page).headers["access-control-allow-origin"] == "*"


class _FailingEngine(EchoEngine):
    """Fails in the middle of a long answer."""

    def prefix_logits(self, prefix: Any) -> Any:
        if len(prefix) > 20:
            raise EngineError("the GPU is on fire in /home/secret")
        return super().prefix_logits(prefix)


def test_a_fault_of_the_engine_is_told_without_its_text_and_the_next_request_is_answered(
    serve_echo: ServeEcho, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_echo(engine=_FailingEngine())
    long, short = GOOD[CHAT] | said("x" * 15) | {"temperature": 0}, GOOD[CHAT] | {"temperature": 0}
    failed = server.ask(CHAT, long)
    assert (failed.status, failed.error["type"]) == (500, "server_error")
    assert b"secret" not in failed.data
    assert "the GPU is on fire" in caplog.text
    *_, error = server.ask(CHAT, long | {"stream": True}).events
    assert error["error"]["type"] == "server_error"
    *_, event = server.ask(RESPONSE, {"model": "small", "input": "x" * 15, "stream": True, "temperature": 0}).events
    assert event["type"] == "error"
    assert server.ask(CHAT, short).body["choices"][0]["message"]["content"] == "hi"


def test_the_page_lists_what_is_let_through() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    for name in (*HARMLESS, *NEUTRAL):
        assert f"`{name}`" in page, name
    for values in NEUTRAL.values():
        assert all(json.dumps(value) in page for value in values)
