"""Turns, agreement and the verify curve, on modes and an engine without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from starsd_edge.bench.runs import WARM_UP_TOKENS, Divergence, Run, differences, margin_at, measure_verify, run_by_turns
from starsd_edge.speculation.sampling import Sampler, SamplingParams
from tests.support.prefix_engine import PrefixEngine

PROMPTS = [[1, 2, 3], [4, 5], [6]]


@dataclass
class Diary:
    """A mode that notes when it was run."""

    name: str
    entries: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        self.entries.append((self.name, tuple(prompt), new_tokens))
        return Run((*prompt, *range(new_tokens - len(prompt))), 0.5, 2.0)


def test_modes_take_turns_and_none_is_always_first() -> None:
    entries: list[tuple[str, tuple[int, ...], int]] = []
    modes = [Diary(name, entries) for name in ("a", "b", "c")]
    runs = run_by_turns(modes, PROMPTS, 20, repeats=2)
    assert entries[:3] == [(name, (1, 2, 3), WARM_UP_TOKENS) for name in "abc"]
    counted = entries[3:]
    assert [prompt for _, prompt, _ in counted] == [tuple(prompt) for prompt in PROMPTS * 2 for _ in modes]
    assert "".join(name for name, _, _ in counted) == "abcbcacababcbcacab"
    assert {tokens for _, _, tokens in counted} == {20}
    assert {name: len(found) for name, found in runs.items()} == {"a": 6, "b": 6, "c": 6}


def test_warm_up_is_no_longer_than_the_answers() -> None:
    mode = Diary("a")
    run_by_turns([mode], [[1]], 3, repeats=1)
    assert mode.entries[0] == ("a", (1,), 3)


def test_speed_leaves_out_the_first_token() -> None:
    assert Run((1, 2, 3), first_s=9.0, decode_s=0.5).tokens_per_s == 4.0


def run_of(*tokens: int) -> Run:
    return Run(tokens, 1.0, 1.0)


def test_differences_are_found_where_they_begin() -> None:
    runs = {
        "plain": [run_of(1, 2, 3), run_of(4, 5, 6), run_of(1, 2, 3), run_of(4, 5, 7)],
        "same": [run_of(1, 2, 3), run_of(4, 5, 6), run_of(1, 2, 3), run_of(4, 5, 6)],
        "other": [run_of(1, 9, 9), run_of(4, 5, 6), run_of(1, 2, 3), run_of(4, 5)],
    }
    assert differences(runs, "plain", ["same"], prompts=2) == []
    assert differences(runs, "plain", ["other"], prompts=2) == [Divergence("other", 0, 1), Divergence("other", 1, 2)]
    assert differences(runs, "plain", ["plain"], prompts=2) == [Divergence("plain", 1, 2)], "two runs of one mode"


@pytest.mark.parametrize("length", [1, 2, 32, 33, 70])
def test_margin_is_that_of_the_models_own_choice(length: int) -> None:
    engine = PrefixEngine(3)
    text = [(7 * i) % 24 for i in range(length)]
    expected = Sampler(SamplingParams(), 24).choose(engine.prefix_logits(text), length).margin
    assert margin_at(engine, 24, text) == expected


class Ticks:
    """A clock that advances by one at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> float:
        self.now += 1
        return float(self.now)


def test_verify_curve_runs_every_size_in_turn_on_the_committed_tokens() -> None:
    engine = PrefixEngine(1, max_tree=8)
    seconds = measure_verify(engine, list(range(20)) * 3, committed=50, passes=4, sizes=(1, 3, 8, 9), clock=Ticks())
    assert seconds == {1: [1.0] * 4, 3: [1.0] * 4, 8: [1.0] * 4}
    # 50 tokens in chunks of 32, then three passes that are not counted and four that are.
    assert engine.forward_sizes == [32, 18, *[1, 3, 8] * 7]
