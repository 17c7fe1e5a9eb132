"""The closed-form law against its table and against numbers worked out by hand (milliseconds in the names)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from starsd_edge.planning.law import (
    BANDWIDTH,
    DRAFTER,
    OVERHEAD,
    RTT,
    VERIFY,
    RoundCost,
    break_even_rtt_s,
    chain_tokens,
    gain,
    limit,
    most_targets,
    targets_without_idling,
    tokens_per_s,
)

E = 4.36
PLAIN_S = 0.025
VICUNA = RoundCost(draft_s=0.012, rtt_s=0.001, transfer_s=0.0, overhead_s=0.0, verify_s=0.035, own_s=0.0)
"""The example of the theory: S = 12 ms, t_v = 35 ms, t_ar = 25 ms, E = 4.36 (EAGLE-2 on Vicuna-7B)."""


@pytest.mark.parametrize(
    ("rtt_ms", "without_idling", "rate", "most"), [(1, 4, 90.8, 9), (10, 5, 76.5, 9), (50, 9, 44.9, 9)]
)
def test_the_table_of_the_theory(rtt_ms: int, without_idling: int, rate: float, most: int) -> None:
    cost = replace(VICUNA, rtt_s=rtt_ms / 1e3)
    assert targets_without_idling(cost.draft_s, cost.return_s) == without_idling
    assert tokens_per_s(E, cost.draft_s, cost.return_s) == pytest.approx(rate, abs=0.05)
    assert most_targets(E, cost.draft_s, PLAIN_S) == most


def test_plain_and_co_located_decoding_of_the_table() -> None:
    assert tokens_per_s(1, 0.0, PLAIN_S) == pytest.approx(40)
    assert tokens_per_s(E, 0.012, 0.035) == pytest.approx(92.8, abs=0.05)


def test_a_saturated_hub_shares_itself_among_its_targets() -> None:
    assert tokens_per_s(E, 0.012, 0.036, targets=4) == pytest.approx(E / 0.048), "the last that is for nothing"
    assert tokens_per_s(E, 0.012, 0.036, targets=8) == pytest.approx(E / 0.096)


def test_gain_and_break_even_by_hand() -> None:
    # A round of 48 ms gives 4.36 tokens, for which plain decoding takes 109 ms.
    assert gain(E, PLAIN_S, VICUNA.total_s) == pytest.approx(109 / 48)
    assert break_even_rtt_s(E, PLAIN_S, VICUNA) == pytest.approx(0.109 - 0.047)


@pytest.mark.parametrize("rtt_s", [0.0, 0.001, 0.2])
def test_the_gain_is_one_at_the_break_even_whatever_the_rtt_is_now(rtt_s: float) -> None:
    cost = RoundCost(0.004, rtt_s, 0.0007, 0.0003, 0.041, 0.001)
    even = break_even_rtt_s(2.5, 0.030, cost)
    assert gain(2.5, 0.030, replace(cost, rtt_s=even).total_s) == pytest.approx(1)


def test_where_a_round_costs_more_than_its_tokens_no_rtt_gains() -> None:
    cost = RoundCost(draft_s=0.050, rtt_s=0.0, transfer_s=0.0, overhead_s=0.0, verify_s=0.030, own_s=0.0)
    assert break_even_rtt_s(2.0, 0.030, cost) == pytest.approx(-0.020)


@pytest.mark.parametrize(
    ("acceptance", "depth", "tokens"),
    [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.7, 5, (1 - 0.7**6) / 0.3)],
)
def test_tokens_of_a_chain(acceptance: float, depth: int, tokens: float) -> None:
    assert chain_tokens(acceptance, depth) == pytest.approx(tokens)
    by_levels = sum(acceptance**level for level in range(depth + 1))
    assert chain_tokens(acceptance, depth) == pytest.approx(by_levels)


def test_whole_ratios_are_not_rounded_away() -> None:
    for targets in range(2, 200):
        for draft_s in (0.001, 0.0123, 0.7):
            assert targets_without_idling(draft_s, (targets - 1) * draft_s) == targets
            assert most_targets(2.0, draft_s, targets * draft_s / 2.0) == targets


@pytest.mark.parametrize(
    ("cost", "name", "seconds"),
    [
        (VICUNA, DRAFTER, 0.012),
        (replace(VICUNA, rtt_s=0.05), RTT, 0.05),
        (replace(VICUNA, transfer_s=0.02), BANDWIDTH, 0.02),
        (replace(VICUNA, verify_s=0.045), VERIFY, 0.020),
        (replace(VICUNA, overhead_s=0.013), OVERHEAD, 0.013),
    ],
)
def test_what_limits_is_the_greatest_part_that_plain_decoding_does_not_have(
    cost: RoundCost, name: str, seconds: float
) -> None:
    found, cost_s = limit(cost, plain_verify_s=PLAIN_S)
    assert (found, math.isclose(cost_s, seconds)) == (name, True)
