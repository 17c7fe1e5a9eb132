"""What clients of OpenAI-style servers need and small servers get wrong: a test for each fault that is known.

Tool calls (arguments that are no text, deltas without an index) are in test_tool_calls.py, stop strings within accepted
blocks in test_agreement.py, clients that leave in test_leaving.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.served import Served

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MODEL = {"model": "small", "temperature": 0}


def chat(message: Any = "hello", **more: Any) -> dict[str, Any]:
    return {**MODEL, "messages": [{"role": "user", "content": message}], **more}


def completion(message: str = "hello", **more: Any) -> dict[str, Any]:
    return {**MODEL, "prompt": f"<|u|>{message}<|a|>", "max_tokens": 60, **more}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETION, completion())])
def test_a_reason_is_null_until_the_last_chunk_and_the_stream_ends_with_done(
    echo: Served, path: str, body: dict[str, Any]
) -> None:
    *chunks, end = echo.ask(path, body | {"stream": True}).events
    assert end == "[DONE]"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len(chunks) > 2
    assert "usage" not in chunks[-1]


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETION, completion())])
def test_usage_comes_in_a_chunk_without_choices_and_is_null_before(
    echo: Served, path: str, body: dict[str, Any]
) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, end = echo.ask(path, body | more).events
    assert end == "[DONE]"
    assert last["choices"] == []
    whole = echo.ask(path, body).body
    assert {**last["usage"], "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)


def test_the_role_and_a_null_refusal_come_first_and_once(echo: Served) -> None:
    first, *others, _ = echo.ask(CHAT, chat(stream=True)).events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in others)
    message = echo.ask(CHAT, chat()).body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "hello", "refusal": None}


@pytest.mark.parametrize("path", [CHAT, RESPONSE])
def test_a_message_may_come_in_parts(echo: Served, path: str) -> None:
    if path == CHAT:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert echo.ask(path, chat(parts)).body["choices"][0]["message"]["content"] == "one\ntwo"
        return
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    body = MODEL | {"input": [{"role": "user", "content": parts}]}
    assert echo.ask(path, body).body["output"][0]["content"][0]["text"] == "one\ntwo"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_limits_an_answer(echo: Served, name: str) -> None:
    choice = echo.ask(CHAT, chat(**{name: 3})).body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hel", "length")
    refused = echo.ask(CHAT, chat(max_tokens=3, max_completion_tokens=3))
    assert (refused.status, refused.error["param"]) == (400, "max_tokens")


def test_an_answer_without_a_limit_goes_on_to_the_end_of_the_context_and_a_completion_to_sixteen(echo: Served) -> None:
    said = echo.ask(CHAT, chat("x" * 100)).body
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"]["total_tokens"] == 128
    assert echo.ask(COMPLETION, completion("x" * 30) | {"max_tokens": None}).body["choices"][0]["text"] == "x" * 16


def test_log_probabilities_have_the_shape_of_their_endpoint(echo: Served) -> None:
    choice = echo.ask(CHAT, chat("hé", logprobs=True, top_logprobs=3)).body["choices"][0]
    assert choice["logprobs"].keys() == {"content", "refusal"}
    for each in choice["logprobs"]["content"]:
        assert each.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert each["top_logprobs"][0]["token"] == each["token"]
        assert len(each["top_logprobs"]) == 3
    tokens = [each["token"] for each in choice["logprobs"]["content"]]
    assert tokens == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert echo.ask(CHAT, chat()).body["choices"][0]["logprobs"] is None

    legacy = echo.ask(COMPLETION, completion("hé!", logprobs=3)).body["choices"][0]["logprobs"]
    assert legacy["tokens"] == [*tokens, "!"]
    assert legacy["text_offset"] == [0, 1, 1, 2]
    assert [len(top) for top in legacy["top_logprobs"]] == [3] * 4
    assert [max(top, key=top.__getitem__) for top in legacy["top_logprobs"]] == legacy["tokens"]
    none = echo.ask(COMPLETION, completion("hé!", logprobs=0)).body["choices"][0]["logprobs"]
    assert (none["token_logprobs"], none["top_logprobs"]) == (legacy["token_logprobs"], [{}] * 4)


@pytest.mark.parametrize("width", range(1, 8))
def test_no_part_of_a_stop_string_leaks(echo: Served, width: int) -> None:
    stop = "STOPSTOP"[:width]
    *chunks, _ = echo.ask(CHAT, chat("STO some STOPSTOP", stop=stop, stream=True)).events
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == "STO some STOPSTOP".partition(stop)[0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_several_choices_are_told_by_their_index(echo: Served) -> None:
    """At this temperature the byte model says something else each time."""
    body = chat("hi", n=3, temperature=3.0, seed=5, max_tokens=8)
    choices = echo.ask(CHAT, body).body["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in choices]
    assert len(set(texts)) == 3
    *chunks, usage, _ = echo.ask(CHAT, body | {"stream": True, "stream_options": {"include_usage": True}}).events
    streamed = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts
    first = echo.ask(CHAT, body | {"n": 1}).body
    assert first["choices"][0]["message"]["content"] == texts[0]
    assert usage["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"], "choices share their prompt"


def test_several_prompts_are_answered_in_their_order(echo: Served) -> None:
    prompts = ["<|u|>one<|a|>", "<|u|>two<|a|>"]
    choices = echo.ask(COMPLETION, MODEL | {"prompt": prompts, "n": 2}).body["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    ids = [echo.ask(COMPLETION, MODEL | {"prompt": each, "return_token_ids": True}).body for each in prompts]
    tokens = [each["choices"][0]["prompt_token_ids"] for each in ids]
    assert [c["text"] for c in echo.ask(COMPLETION, MODEL | {"prompt": tokens}).body["choices"]] == ["one", "two"]
    assert echo.ask(COMPLETION, MODEL | {"prompt": tokens[1]}).body["choices"][0]["text"] == "two"


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat()), (COMPLETION, completion()), (RESPONSE, MODEL | {"input": "hello"})]
)
def test_every_response_says_how_drafting_went_and_what_it_is_called(
    echo: Served, path: str, body: dict[str, Any]
) -> None:
    reply = echo.ask(path, body, {"X-Request-Id": "my-own.1"})
    assert reply.headers["x-request-id"] == "my-own.1"
    figures = reply.body["metrics"]["speculative_decoding"]
    assert figures.keys() >= {"num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"}
    *_, last = [event for event in echo.ask(path, body | {"stream": True}).events if event != "[DONE]"]
    shown = last["response"] if path == RESPONSE else last
    assert shown["metrics"]["speculative_decoding"].keys() == figures.keys()
    strange = echo.ask(path, body, {"X-Request-Id": "no spaces"}).headers["x-request-id"]
    assert strange.startswith("req_")


def test_acceptance_is_counted_by_position(echo: Served) -> None:
    """Its own n-grams draft a text that repeats itself, unless a loaded machine makes them seem not to pay."""
    for _ in range(20):
        figures = echo.ask(CHAT, chat("ab" * 30)).body["metrics"]["speculative_decoding"]
        if figures["num_accepted_draft_tokens"]:
            break
    steps, accepted = figures["num_spec_steps"], figures["num_accepted_draft_tokens"]
    assert accepted == sum(figures["num_accepted_tokens_per_position"]) > 0
    assert figures["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert figures["draft_acceptance_rate"] == pytest.approx(accepted / figures["num_draft_tokens"])
    histogram = {int(count): rounds for count, rounds in figures["acceptance_histogram"].items()}
    assert sum(histogram.values()) == steps
    assert sum(count * rounds for count, rounds in histogram.items()) == accepted
    assert figures["num_draft_tokens_per_position"][0] == steps


def test_earlier_turns_are_read_once(echo: Served) -> None:
    said = [{"role": "user", "content": "some long words"}]
    first = echo.ask(CHAT, MODEL | {"messages": said}).body["choices"][0]["message"]
    later = [*said, first, {"role": "user", "content": "more"}]
    usage = echo.ask(CHAT, MODEL | {"messages": later}).body["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len("|some long words")
