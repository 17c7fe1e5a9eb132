"""Text, ids, log-probabilities and usage of a response agree with each other and with the model alone, whole and as a
stream, with a hub whose drafts are right and go beyond the end, without one, and with one that goes in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from tests.serve.conftest import ServeEcho
from tests.support.echo_model import ASSISTANT, EOS, USER, EchoEngine, byte_tokenizer, knowing, knowing_for
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

TOKENIZER = byte_tokenizer()
MOST = 60


@dataclass(frozen=True)
class Case:
    """What the model is to say, and where it ends."""

    message: str
    stop: tuple[str, ...] = ()
    max_tokens: int = MOST

    @property
    def expected(self) -> tuple[str, list[int], str]:
        """Text, ids and finish reason, by their definition: one token after another."""
        ids = TOKENIZER.encode(self.message)[: self.max_tokens]
        for count in range(1, len(ids) + 1):
            text = TOKENIZER.decode(ids[:count])
            found = [stop for stop in self.stop if stop in text]
            if found:
                return text[: text.index(found[0])], ids[:count], "stop"
        return TOKENIZER.decode(ids), ids, "stop" if len(ids) < self.max_tokens else "length"


ENDS = [Case("abcdefghijklmnopqrst"[:length]) for length in range(1, 11)]
STOPS = [Case("abcdefghijklmnopqrst", stop) for stop in (("f",), ("fgh",), ("ghijk",), ("zz", "cdefg"), ("tu",))]
SPLIT = [
    Case("naïve 日本語 🙂🙂 ß"),
    Case("日本語日本語", ("語日",)),
    Case("🙂🙂🙂🙂", max_tokens=6),
    Case("é🙂", max_tokens=4),
]
CASES = [*ENDS, *STOPS, *SPLIT]


@pytest.fixture(scope="module", params=["with the hub", "without it", "with it dying"])
def server(request: pytest.FixtureRequest, serve_echo: ServeEcho) -> Iterator[Served]:
    if request.param == "without it":
        yield serve_echo()
        return
    script = knowing if request.param == "with the hub" else knowing_for(2)
    with ScriptedHub(script) as hub:
        yield serve_echo(hub=hub.url)


def asked(case: Case, **more: Any) -> dict[str, Any]:
    body = {"model": "small", "temperature": 0, "max_tokens": case.max_tokens, "return_token_ids": True} | more
    return body | ({"stop": list(case.stop)} if case.stop else {})


def expected_logprobs(prompt: list[int], ids: list[int]) -> list[float]:
    engine, text, found = EchoEngine(), list(prompt), []
    for token in ids:
        found.append(float(log_softmax(engine.prefix_logits(text).astype(np.float64))[token]))
        text.append(token)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.message} {case.stop} {case.max_tokens}")
def test_all_forms_of_an_answer_are_that_of_the_model_alone(server: Served, case: Case) -> None:
    text, ids, reason = case.expected
    prompt = [USER, *TOKENIZER.encode(case.message), ASSISTANT]
    logprobs = expected_logprobs(prompt, ids)
    chat = asked(case, messages=[{"role": "user", "content": case.message}], logprobs=True, top_logprobs=2)
    (choice,) = (whole := server.ask("/v1/chat/completions", chat).body)["choices"]
    assert (choice["message"]["content"], choice["token_ids"], choice["finish_reason"]) == (text, ids, reason)
    assert choice["prompt_token_ids"] == prompt
    content = choice["logprobs"]["content"]
    assert [each["logprob"] for each in content] == pytest.approx(logprobs, abs=1e-9)
    assert [len(each["top_logprobs"]) for each in content] == [2] * len(ids)
    said = b"".join(bytes(each["bytes"]) for each in content)
    assert said.decode(errors="replace").startswith(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    assert whole["usage"]["prompt_tokens"] == len(prompt)
    assert whole["usage"]["completion_tokens"] == len(ids) == len(content)

    *chunks, usage, end = server.ask(
        "/v1/chat/completions", chat | {"stream": True, "stream_options": {"include_usage": True}}
    ).events
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["delta"].get("content", "") for part in parts) == text
    assert [token for part in parts for token in part.get("token_ids", ())] == ids
    streamed = [each for part in parts if part["logprobs"] for each in part["logprobs"]["content"]]
    assert streamed == content
    assert usage["usage"]["completion_tokens"] == len(ids)
    assert end == "[DONE]"

    completion = asked(case, prompt=prompt, logprobs=2)
    (plain,) = server.ask("/v1/completions", completion).body["choices"]
    assert (plain["text"], plain["token_ids"], plain["finish_reason"]) == (text, ids, reason)
    assert plain["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=1e-9)
    *pieces, _ = server.ask("/v1/completions", completion | {"stream": True}).events
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == text
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        found = [each for p in pieces if p["choices"][0]["logprobs"] for each in p["choices"][0]["logprobs"][field]]
        assert found == plain["logprobs"][field]

    response = {"model": "small", "temperature": 0, "max_output_tokens": case.max_tokens, "input": case.message}
    response |= {"top_logprobs": 2} | ({"stop": list(case.stop)} if case.stop else {})
    body = server.ask("/v1/responses", response).body
    (part,) = body["output"][0]["content"]
    assert (part["text"], part["logprobs"]) == (text, content)
    assert body["status"] == ("incomplete" if reason == "length" else "completed")
    events = server.ask("/v1/responses", response | {"stream": True}).events
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(delta["delta"] for delta in deltas) == text
    assert [each for delta in deltas for each in delta["logprobs"]] == content
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"] == [part]


def test_the_cases_end_within_accepted_blocks(serve_echo: ServeEcho) -> None:
    """What the cases above rest on: drafts are accepted, and reach beyond the end."""
    with ScriptedHub(knowing) as hub:
        server = serve_echo(hub=hub.url)
        for case in [*ENDS[5:], *STOPS]:
            chat = asked(case, messages=[{"role": "user", "content": case.message}])
            figures = server.ask("/v1/chat/completions", chat).body["metrics"]["speculative_decoding"]
            assert figures["num_spec_steps"] > 0
            assert figures["num_accepted_draft_tokens"] > 0
            assert sum(figures["acceptance_histogram"].values()) == figures["num_spec_steps"]
    assert EOS not in TOKENIZER.encode(ENDS[-1].message)
