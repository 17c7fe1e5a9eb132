"""Who is drafted for, when and how much: each policy in a closed star of made-up time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starsd_edge.cli.shared_options import QueueOrder
from starsd_edge.scheduling.policies import AGING, MOST_RETURN_S, KeyTerms
from starsd_edge.scheduling.scheduler import POLICIES, PROMOTED_AFTER_S, longest_wait_s
from tests.support.closed_star import LEVEL_S, ClosedStar, Spoke, jain, jittered

S = 0.012
VERIFY_S = 0.035
SECONDS = 12.0


def spokes(count: int, *rtts_s: float, seed: int = 0) -> list[Spoke]:
    """Targets whose round-trip times are these in turn, S = 12 ms, verify 35 ms, with a fifth of jitter."""
    uniform = random.Random(seed).uniform
    return [
        Spoke(jittered(VERIFY_S + rtts_s[number % len(rtts_s)], 0.2, uniform), first_s=0.003 * number)
        for number in range(count)
    ]


FAR_AND_NEAR = (0.001, 0.011, 0.031, 0.081, 0.2)


def own_rate(spoke: Spoke) -> float:
    """Rounds a second with the hub to itself."""
    return 1 / (S + sum(spoke.return_s) / len(spoke.return_s))


def test_equal_shares_of_the_drafter_under_overload_whatever_the_round_trip() -> None:
    ledger = ClosedStar("drr", spokes(32, 0.0001, *FAR_AND_NEAR)).run(12.0)
    assert jain(ledger.drafted_s) >= 0.98
    assert ledger.idle_s == 0


def test_equal_shares_also_where_requests_cost_differently_and_predictions_are_wrong() -> None:
    cheap_and_dear = [Spoke([0.03], levels=4 + 12 * (number % 2)) for number in range(20)]
    ledger = ClosedStar("drr", cheap_and_dear, misjudged=1.7).run(20.0)
    assert jain(ledger.drafted_s) >= 0.98
    fifo = ClosedStar("fifo", cheap_and_dear, misjudged=1.7).run(20.0)
    assert jain(fifo.drafted_s) < 0.8


@pytest.mark.parametrize("count", [9, 16, 32])
def test_longest_return_leaves_everybody_a_quarter_of_their_own_rate_times_what_there_is(count: int) -> None:
    targets = spokes(count, *FAR_AND_NEAR)
    ledger = ClosedStar("latency", targets).run(SECONDS)
    load = S * sum(own_rate(spoke) for spoke in targets)
    for spoke, waits in zip(targets, ledger.waits_s, strict=True):
        assert len(waits) / SECONDS >= 0.25 * own_rate(spoke) / max(1.0, load)


def test_the_far_go_first_by_latency_and_the_near_by_srf() -> None:
    """Near the knee, where order matters: the far wait for less than with fifo, and the other way round."""
    targets = spokes(9, *FAR_AND_NEAR)
    far = range(4, 9, 5)
    waits = {}
    for policy in ("latency", "fifo", "srf"):
        ledger = ClosedStar(policy, targets).run(SECONDS)
        of_far = [wait for session in far for wait in ledger.waits_s[session]]
        waits[policy] = sum(of_far) / len(of_far)
    assert waits["latency"] < 0.8 * waits["fifo"]
    assert waits["srf"] > 1.2 * waits["fifo"]


def test_latency_gives_equal_shares_above_saturation_and_goes_back_below() -> None:
    crowded = ClosedStar("latency", spokes(32, *FAR_AND_NEAR))
    assert crowded.run(3.0).policies == {"latency", "drr"}
    assert crowded.queue.policy == "drr"
    assert ClosedStar("latency", spokes(5, *FAR_AND_NEAR)).run(3.0).policies == {"latency"}
    leaving = [*spokes(4, *FAR_AND_NEAR), *(Spoke([0.03] * 40 + [1e6], first_s=0.01 * n) for n in range(20))]
    emptied = ClosedStar("latency", leaving)
    assert emptied.run(25.0).policies == {"latency", "drr"}
    assert emptied.queue.policy == "latency"


@pytest.mark.parametrize("policy", ["drr", "latency"])
def test_weights_are_shares_under_overload(policy: str) -> None:
    targets = [Spoke([0.02], terms=KeyTerms(weight=3.0 if number < 4 else 1.0)) for number in range(16)]
    ledger = ClosedStar(policy, targets).run(15.0)
    heavy, light = sum(ledger.drafted_s[:4]) / 4, sum(ledger.drafted_s[4:]) / 12
    assert heavy / light == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_higher_class_goes_first_and_a_lower_one_is_served_all_the_same(policy: str) -> None:
    targets = [Spoke([0.02], terms=KeyTerms(priority=1 if number < 8 else 0)) for number in range(9)]
    ledger = ClosedStar(policy, targets).run(SECONDS)
    first, last = ledger.waits_s[:8], ledger.waits_s[8]
    assert max(wait for waits in first for wait in waits) < PROMOTED_AFTER_S / 4
    assert PROMOTED_AFTER_S < max(last) < longest_wait_s(9, S, classes_above=1)
    assert len(last) > SECONDS / longest_wait_s(9, S, classes_above=1)


def test_a_stranger_is_neither_first_nor_last() -> None:
    """Nothing is known of a new session's return: it counts as a usual one."""
    targets = [*spokes(7, 0.0, 0.2), Spoke([0.1], first_s=3.0)]
    ledger = ClosedStar("latency", targets).run(4.0)
    assert 0 < ledger.waits_s[7][0] < 7 * S


SPOKES = st.lists(
    st.builds(
        Spoke,
        return_s=st.lists(st.floats(0.0001, 0.4), min_size=1, max_size=4),
        levels=st.integers(8, 48),
        first_s=st.floats(0.0, 0.3),
        terms=st.builds(KeyTerms, weight=st.sampled_from([0.1, 1.0, 10.0]), priority=st.integers(0, 1)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(SPOKES, st.sampled_from(sorted(POLICIES)), st.sampled_from([1, 3, 16]), st.booleans())
def test_nobody_waits_for_longer_than_the_bound(targets: list[Spoke], policy: str, batch: int, prefill: bool) -> None:
    row_s = 0.0004 if prefill else 0.0
    ledger = ClosedStar(policy, targets, batch, misjudged=1.5, prefill_row_s=row_s).run(6.0)
    pass_s = 1.5 * LEVEL_S * max(spoke.levels for spoke in targets) + 64 * row_s
    top = max(spoke.terms.priority for spoke in targets)
    for spoke, waits in zip(targets, ledger.waits_s, strict=True):
        assert max(waits, default=0.0) <= longest_wait_s(len(targets), pass_s, top - spoke.terms.priority)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0.001, 0.01, 0.03, 0.06, 0.2]), min_size=1, max_size=3), min_size=8, max_size=16
    ),
    st.sampled_from(["fifo", "srf", "drr", "latency"]),
)
def test_equals_wait_for_no_more_than_aging_allows(returns: list[list[float]], policy: str) -> None:
    """With one class, one weight and one cost the bounds are much closer."""
    ledger = ClosedStar(policy, [Spoke(one) for one in returns]).run(3.0)
    queue_s = len(returns) * S
    bound = {"fifo": queue_s, "srf": queue_s + MOST_RETURN_S / AGING, "drr": 4 * queue_s}
    bound["latency"] = max(bound["srf"], bound["drr"])
    assert max(wait for waits in ledger.waits_s for wait in waits) <= bound[policy] + 1e-9


def test_users_may_ask_for_every_policy_and_each_can_be_simulated() -> None:
    assert {*POLICIES} == {order.value for order in QueueOrder}
