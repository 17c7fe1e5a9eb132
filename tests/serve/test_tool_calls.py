"""Calls of functions: read from the text in three forms, however it is cut, and shown as each API has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starsd_edge.text.chat import ChatTemplate
from starsd_jetson.serve.tool_calls import Call, Part, ToolForm, form_of
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import HERMES, LLAMA, MISTRAL, PLAIN, byte_tokenizer, knowing
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

CHAT, RESPONSE = "/v1/chat/completions", "/v1/responses"
WEATHER = Call("weather", '{"city": "Ulm"}')
CLOCK = Call("clock", "{}")
GOOD: list[tuple[ToolForm, str, list[Part]]] = [
    (
        ToolForm.HERMES,
        'Well.\n<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>',
        ["Well.", WEATHER],
    ),
    (
        ToolForm.HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n<tool_call>{"name": "clock"}',
        [WEATHER, CLOCK],
    ),
    (ToolForm.HERMES, '<tool_call>{"name": "clock"}</tool_call> and more', [CLOCK, " and more"]),
    (ToolForm.HERMES, '<tool_call>{"name": "clock", "arguments": "{}"}</tool_call>', [CLOCK]),
    (
        ToolForm.HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\""}}</tool_call> x',
        [Call("f", '{"a": "</tool_call>\\""}'), " x"],
    ),
    (
        ToolForm.HERMES,
        '<tool_call>{"a": "}</tool_call>\n<tool_call>{"name": "clock"}</tool_call>',
        ['<tool_call>{"a": "}</tool_call>', CLOCK],
    ),
    (ToolForm.HERMES, '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', [Call("f", '{"a": "?"}')]),
    (ToolForm.LLAMA, '{"name": "clock", "parameters": { "a":1E5 } }', [Call("clock", '{ "a":1E5 }')]),
    (ToolForm.MISTRAL, 'So: [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm"}}]', ["So:", WEATHER]),
    (
        ToolForm.MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}, {"name": "clock", "arguments": {}}]',
        [WEATHER, CLOCK],
    ),
    (ToolForm.LLAMA, '{"name": "weather", "parameters": {"city": "Ulm"}}', [WEATHER]),
    (
        ToolForm.LLAMA,
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Ulm"}}; {"name": "clock", "parameters": {}}',
        [WEATHER, CLOCK],
    ),
]
TEXT: list[tuple[ToolForm, str]] = [
    (ToolForm.HERMES, "no call  \n"),
    (ToolForm.HERMES, "1 <tool_cal 2 <tool"),
    (ToolForm.HERMES, "before \n<tool_call>{not JSON}</tool_call> after"),
    (ToolForm.HERMES, 'cut off \n<tool_call>{"name": "weather", "argu'),
    (ToolForm.HERMES, '<tool_call>["name"]</tool_call>'),
    (ToolForm.HERMES, '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    (ToolForm.HERMES, '<tool_call>"</tool_call>' * 3),
    (ToolForm.HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    (ToolForm.MISTRAL, "no call \n"),
    (ToolForm.MISTRAL, "some [TOOL_CALLS] text"),
    (ToolForm.MISTRAL, '[TOOL_CALLS][{"name": "clock"}, 5]'),
    (ToolForm.LLAMA, "  plain text"),
    (ToolForm.LLAMA, "<|python"),
    (ToolForm.LLAMA, '{"name": "unknown", "parameters": {}}'),
    (ToolForm.LLAMA, '{"name": "clock", "parameters": {}} and text'),
    (ToolForm.LLAMA, '{"answer": 42}'),
    (ToolForm.LLAMA, "{" * 4000),
]


def read(form: ToolForm, pieces: Sequence[str]) -> list[Part]:
    """The parts of an answer, texts that follow each other joined."""
    reader = form.reader({"weather", "clock"})
    joined: list[Part] = []
    for part in [*(part for piece in pieces for part in reader.feed(piece)), *reader.finish()]:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(("form", "text", "parts"), GOOD)
def test_calls_are_read(form: ToolForm, text: str, parts: list[Part]) -> None:
    assert read(form, [text]) == read(form, list(text)) == parts


@pytest.mark.parametrize(("form", "text"), TEXT, ids=range(len(TEXT)))
def test_what_only_looks_like_a_call_stays_the_text_that_it_is(form: ToolForm, text: str) -> None:
    assert read(form, [text]) == read(form, list(text)) == [text]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_it_does_not_matter_how_an_answer_is_cut(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(ToolForm))
    words = [text for each, text, *_ in [*GOOD, *TEXT[:-1]] if each is form]
    marks = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<", " ", "\n", "{}", "a"]
    text = "".join(data.draw(st.lists(st.sampled_from([*words, *marks]), max_size=5)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parts = read(form, [text])
    assert read(form, pieces) == parts
    if not any(isinstance(part, Call) for part in parts):
        assert "".join(str(part) for part in parts) == text


def test_a_template_tells_its_form() -> None:
    assert [form_of(text) for text in (HERMES, MISTRAL, LLAMA, PLAIN)] == [*ToolForm, None]
    assert form_of("{% if tools %}<tool_call>\n<function=name>") is None
    assert form_of("[TOOL_CALLS]name[ARGS]{}") is None


@pytest.mark.parametrize(
    ("source", "takes_tools"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        (
            "{% if custom is defined %}{% set tools = custom %}{% endif %}{% if not tools is defined %}"
            "{% set tools = none %}{% endif %}{% if tools is not none %}x{% endif %}",
            True,
        ),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
    ],
)
def test_a_template_tells_whether_it_takes_tools(source: str, takes_tools: bool) -> None:
    assert ChatTemplate(source, {}, datetime.now).takes_tools is takes_tools


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "default": None}}}
SAYS = {
    HERMES: '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>',
    MISTRAL: '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}]',
    LLAMA: '{"name": "weather", "parameters": {"city": "Ulm"}}',
}


@pytest.fixture(scope="module", params=["hermes", "mistral", "llama"])
def template(request: pytest.FixtureRequest) -> str:
    return {"hermes": HERMES, "mistral": MISTRAL, "llama": LLAMA}[request.param]


@pytest.fixture(scope="module", params=["with speculation", "without"])
def server(request: pytest.FixtureRequest, serve_echo: ServeEcho, template: str) -> Iterator[Served]:
    if request.param == "without":
        yield serve_echo(template, context=256)
        return
    with ScriptedHub(knowing) as hub:
        yield serve_echo(template, hub=hub.url, context=256)


def asked(message: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": message}]
    return {"model": "small", "temperature": 0, "messages": messages, "tools": [TOOL], **more}


def test_a_chat_gets_its_calls_whole_and_as_deltas_with_an_index(server: Served, template: str) -> None:
    (choice,) = server.ask(CHAT, asked(SAYS[template])).body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["refusal"]) == (None, None)
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert call["type"] == "function"
    if template is MISTRAL:
        assert len(call["id"]) == 9
        assert call["id"].isalnum()

    *chunks, end = server.ask(CHAT, asked(SAYS[template], stream=True)).events
    choices = [chunk["choices"][0] for chunk in chunks]
    (delta,) = [each["delta"]["tool_calls"] for each in choices if each["delta"].get("tool_calls")]
    assert [(each["index"], each["function"]) for each in delta] == [(0, call["function"])]
    assert "".join(each["delta"].get("content") or "" for each in choices) == ""
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    assert end == "[DONE]"


def test_a_response_has_its_calls_as_items(server: Served, template: str) -> None:
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    body = {"model": "small", "temperature": 0, "input": SAYS[template], "tools": [tool]}
    (item,) = server.ask(RESPONSE, body).body["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "weather", '{"city": "Ulm"}')
    events = server.ask(RESPONSE, body | {"stream": True}).events
    kinds = [event["type"].removeprefix("response.") for event in events]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *call, "completed"]
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert events[3]["delta"] == events[4]["arguments"] == item["arguments"]


def test_calls_and_results_are_read_again(server: Served) -> None:
    """A template gets arguments as an object, whatever the client sent them as."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    chat = {"model": "small", "temperature": 0, "messages": messages, "tools": [TOOL]}
    (choice,) = server.ask(CHAT, chat | {"return_token_ids": True}).body["choices"]
    assert choice["message"]["content"] == "rain"
    assert '<weather{"city": "Ulm"}>' in byte_tokenizer().decode(choice["prompt_token_ids"])
    items = [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": call["id"], **call["function"]},  # type: ignore[dict-item]
        {"type": "function_call_output", "call_id": call["id"], "output": "rain"},
    ]
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    body = server.ask(RESPONSE, {"model": "small", "temperature": 0, "input": items, "tools": [tool]}).body
    assert body["output"][0]["content"][0]["text"] == "rain"
    assert body["usage"]["input_tokens"] == len(choice["prompt_token_ids"])


def test_text_stays_text_with_tools_and_marks_without_them(server: Served, template: str) -> None:
    assert server.ask(CHAT, asked("plain")).body["choices"][0]["message"]["content"] == "plain"
    for more in ({"tools": None}, {"tool_choice": "none"}):
        (choice,) = server.ask(CHAT, asked(SAYS[template]) | more).body["choices"]
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["content"].endswith(SAYS[template].removeprefix("[TOOL_CALLS]"))


def test_a_call_that_is_cut_off_is_text(server: Served, template: str) -> None:
    (choice,) = server.ask(CHAT, asked(SAYS[template], max_tokens=30)).body["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert SAYS[template].startswith(choice["message"]["content"])


def test_a_model_without_tools_refuses_them(serve_echo: ServeEcho) -> None:
    refused = serve_echo(PLAIN).ask(CHAT, asked("hello"))
    assert (refused.status, refused.error["param"]) == (400, "tools")
    assert "no tools" in refused.error["message"]
