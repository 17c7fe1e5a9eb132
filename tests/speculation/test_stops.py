"""Where an answer ends: alike for single tokens and for accepted blocks."""

from __future__ import annotations

import pytest

from starsd_edge.errors import UsageError
from starsd_edge.speculation.stops import Stopper, StopRules

STOP = 7


def answer(block: list[int], *, max_tokens: int = 100, context_left: int = 100) -> tuple[list[int], str | None]:
    stopper = Stopper(StopRules(frozenset({STOP, 8}), max_tokens, context_left))
    kept: list[int] = []
    for token in block:
        reason = stopper.push(token)
        if reason != "stop":
            kept.append(token)
        if reason:
            return kept, reason
    return kept, None


def test_a_stop_inside_an_accepted_block_goes_before_the_length() -> None:
    assert answer([10, 11, STOP, 20, 21, 22], max_tokens=5) == ([10, 11], "stop")


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("eos", [STOP, 8])
def test_an_end_of_sequence_at_every_index_of_a_block(index: int, eos: int) -> None:
    block = [10, 11, 12, 13, 14, 15]
    block[index] = eos
    assert answer(block) == (block[:index], "stop")


@pytest.mark.parametrize("limit", range(1, 7))
def test_max_tokens_inside_a_block(limit: int) -> None:
    block = [10, 11, 12, 13, 14, 15, 16]
    assert answer(block, max_tokens=limit) == (block[:limit], "length")
    assert answer(block, context_left=limit) == (block[:limit], "length")


def test_an_end_of_sequence_in_the_place_after_the_last_allowed_token_is_not_reached() -> None:
    assert answer([10, 11, STOP], max_tokens=2) == ([10, 11], "length")


def test_an_end_of_sequence_in_the_last_allowed_place_is_a_stop() -> None:
    assert answer([10, STOP], max_tokens=2) == ([10], "stop")


def test_nothing_is_left_out_when_no_rule_applies() -> None:
    assert answer([1, 2, 3]) == ([1, 2, 3], None)


@pytest.mark.parametrize(
    ("max_tokens", "context_left", "words"), [(0, 5, "max tokens"), (5, 0, "shorten it"), (5, -3, "shorten it")]
)
def test_rules_that_allow_no_token_are_refused(max_tokens: int, context_left: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        StopRules(frozenset(), max_tokens, context_left)
