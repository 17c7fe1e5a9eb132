"""Every option of a request means what the definition of sampling says, and each choice has a key of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starsd_edge import open_target
from starsd_edge.runtime.engine import Step, TopTwo
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import SamplingParams, token_logprob
from starsd_jetson import target as target_module
from tests.support.decoding import letters, plain_answer, request
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.served import Served, served

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PROMPT = "abacabadabacaba"
SAMPLED = {"temperature": 0.9, "seed": 7}
CASES: list[tuple[dict[str, Any], SamplingParams]] = [
    ({"temperature": 0}, SamplingParams()),
    ({"seed": 3}, SamplingParams(temperature=1.0, seed=3)),
    ({"seed": -3}, SamplingParams(temperature=1.0, seed=2**64 - 3)),
    (SAMPLED | {"top_p": 0.5}, SamplingParams(0.9, seed=7, top_p=0.5)),
    (SAMPLED | {"top_k": 3}, SamplingParams(0.9, seed=7, top_k=3)),
    (SAMPLED | {"min_p": 0.2}, SamplingParams(0.9, seed=7, min_p=0.2)),
    (SAMPLED | {"repetition_penalty": 1.5}, SamplingParams(0.9, seed=7, penalties=Penalties(1.5))),
    (SAMPLED | {"presence_penalty": 1.5}, SamplingParams(0.9, seed=7, penalties=Penalties(1.0, 1.5))),
    (SAMPLED | {"frequency_penalty": -0.5}, SamplingParams(0.9, seed=7, penalties=Penalties(1.0, 0.0, -0.5))),
    ({"temperature": 0, "frequency_penalty": 2.0}, SamplingParams(penalties=Penalties(1.0, 0.0, 2.0))),
    (SAMPLED | {"logit_bias": {"5": 8, "12": -100}}, SamplingParams(0.9, seed=7, logit_bias=((5, 8.0), (12, -100.0)))),
    (SAMPLED | {"min_tokens": 25}, SamplingParams(0.9, seed=7, min_tokens=25)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("letters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_module, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=128))
        with open_target(write_bundle(folder / "bundle", "{{ messages[0].content }}")) as target, served(target) as one:
            yield one


@pytest.mark.parametrize(("options", "sampling"), CASES, ids=str)
def test_an_option_means_what_it_says(server: Served, options: dict[str, Any], sampling: SamplingParams) -> None:
    wanted = request(sampling=sampling, max_tokens=30, context=128)
    expected = plain_answer(PrefixEngine(1, max_context=128), letters(), wanted)
    body = {"model": "small", "max_tokens": 30, "prompt": PROMPT, "return_token_ids": True}
    (choice,) = server.ask(COMPLETION, body | options).body["choices"]
    assert (choice["token_ids"], choice["text"]) == (list(expected.token_ids), expected.text)
    assert choice["finish_reason"] == expected.finish_reason
    chat = {"model": "small", "max_tokens": 30, "messages": [{"role": "user", "content": PROMPT}]}
    assert server.ask(CHAT, chat | options).body["choices"][0]["message"]["content"] == expected.text


def test_each_choice_has_a_key_of_its_own(server: Served) -> None:
    body = {"model": "small", "max_tokens": 20, "prompt": PROMPT, "n": 3, "seed": 11}
    texts = [choice["text"] for choice in server.ask(COMPLETION, body).body["choices"]]
    for index, text in enumerate(texts):
        sampling = SamplingParams(temperature=1.0, seed=11, choice_index=index)
        wanted = request(sampling=sampling, max_tokens=20, context=128)
        assert text == plain_answer(PrefixEngine(1, max_context=128), letters(), wanted).text
    assert len(set(texts)) == 3
    hot = body | {"temperature": 20, "ignore_eos": True, "n": 1}
    unseeded = {server.ask(COMPLETION, hot | {"seed": None}).body["choices"][0]["text"] for _ in range(4)}
    assert len(unseeded) == 4, "each of so many texts is as likely as the other"


def test_an_end_of_sequence_may_be_ignored(server: Served) -> None:
    body = {"model": "small", "max_tokens": 100, "prompt": PROMPT, "temperature": 1, "seed": 2}
    ended = server.ask(COMPLETION, body).body["choices"][0]
    assert ended["finish_reason"] == "stop"
    assert server.ask(COMPLETION, body | {"ignore_eos": True}).body["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_are_of_the_models_own_distribution(server: Served) -> None:
    """A bias changes what is chosen, and not how likely the model found it."""
    body = {"model": "small", "max_tokens": 1, "prompt": PROMPT, "temperature": 0, "logprobs": 20}
    plain = server.ask(COMPLETION, body).body["choices"][0]["logprobs"]
    forced = server.ask(COMPLETION, body | {"logit_bias": {"5": 100}}).body["choices"][0]["logprobs"]
    assert forced["tokens"] == ["f"]
    assert forced["top_logprobs"] == plain["top_logprobs"]
    assert forced["token_logprobs"][0] == pytest.approx(plain["top_logprobs"][0]["f"])
    logits = PrefixEngine(1, max_context=128).prefix_logits(letters().encode(PROMPT))
    every = token_logprob(logits, 5, len(logits))
    assert math.fsum(math.exp(logprob) for _, logprob in every.top) == pytest.approx(1.0)
    assert [token for token, _ in every.top] == sorted(range(len(logits)), key=lambda token: -logits[token])


class _DeviceEngine(PrefixEngine):
    """Leaves the logits where they are, and gives the two highest of each row, as engines of TensorRT do."""

    fetched = 0

    def forward(self, *arguments: Any, **named: Any) -> Step:
        step = super().forward(*arguments, **named)
        ids = np.argsort(-step.logits, axis=1)[:, :2]

        def fetch() -> Any:
            self.fetched += 1
            return step.logits

        return Step(fetch, step.features, TopTwo(ids, np.take_along_axis(step.logits, ids, axis=1)))


def test_logits_that_lie_on_a_device_are_fetched_where_log_probabilities_are_asked_for(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _DeviceEngine(1, max_context=128)
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    body = {"model": "small", "max_tokens": 30, "prompt": PROMPT, "temperature": 0}
    with open_target(write_bundle(tmp_path / "bundle")) as target, served(target) as other:
        plain = other.ask(COMPLETION, body).body["choices"][0]
        assert engine.fetched == 0
        told = other.ask(COMPLETION, body | {"logprobs": 3}).body["choices"][0]
        assert engine.fetched > 0
        refused = other.ask(CHAT, {"model": "small", "messages": [{"role": "user", "content": "a"}]})
        assert (refused.status, refused.error["param"]) == (400, "messages")
        assert "no chat template: use /v1/completions" in refused.error["message"]
    assert plain["text"] == told["text"]
    assert told == server.ask(COMPLETION, body | {"logprobs": 3}).body["choices"][0]


def test_of_tokens_that_are_as_likely_the_lower_id_comes_first() -> None:
    logits = PrefixEngine(1).prefix_logits([1]) * 0
    assert [token for token, _ in token_logprob(logits, 3, 4).top] == [0, 1, 2, 3]
    logits[7] = -math.inf
    assert token_logprob(logits, 7, 0).logprob == -math.inf
