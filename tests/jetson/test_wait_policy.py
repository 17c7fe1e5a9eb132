"""Whether the hub is asked, and how long a round waits for it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from starsd_edge.protocol.codes import EMPTY, LATE, POOR, TIMED
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import NGRAM, NONE
from starsd_jetson.draft_size import RETIMED_AFTER
from starsd_jetson.drafting import RoundDraft
from starsd_jetson.wait_policy import (
    FIRST_GAP,
    FIRST_RETRY,
    MOST_GAP,
    MOST_RETRY,
    MOST_SILENCE_S,
    MOST_WAIT_S,
    ExpectedGain,
    WaitPolicy,
)

CHAIN = DraftShape(4, 4)
TREE = DraftTree.chain([1, 2, 3, 4])
PLAIN = RoundDraft(DraftTree.empty(), NONE)


def see(wait_policy: WaitPolicy, right: int, tree: DraftTree = TREE) -> None:
    """A tree of which so many levels came true."""
    wait_policy.cost_model.estimator.expect(tree, 4, [*range(1, right + 1), 9])


def learned(round_trip_s: float, plain_s: float, right: int = 4, drafts: int = 50) -> WaitPolicy:
    """After so many drafts that took so long and were right for so many levels; a row costs 3 % of a plain step."""
    wait_policy = WaitPolicy()
    for _ in range(drafts):
        wait_policy.cost_model.times.add(5, 1.12 * plain_s)
        wait_policy.cost_model.times.add(1, plain_s)
        wait_policy.asks(CHAIN)
        wait_policy.answered(round_trip_s)
        see(wait_policy, right)
    return wait_policy


def wait(wait_policy: WaitPolicy, elapsed_s: float = 0.0, walked: int = 0, without: RoundDraft = PLAIN) -> float:
    return wait_policy.wait_s(CHAIN, elapsed_s, walked, without)


# Waiting.


def test_nothing_is_waited_for_before_anything_is_known() -> None:
    wait_policy = WaitPolicy()
    assert wait_policy.asks(CHAIN)
    assert wait(wait_policy) == 0
    wait_policy.cost_model.times.add(1, 0.1)
    wait_policy.prefilled()
    assert wait(wait_policy) == 0, "how long the first draft took says nothing about the next"


def test_steady_hub_is_given_the_time_it_takes() -> None:
    assert 0.03 <= wait(learned(0.03, 0.1)) < 0.05


def test_unsteady_hub_is_given_more() -> None:
    wait_policy = learned(0.03, 0.1)
    for round_trip in [0.02, 0.06] * 20:
        wait_policy.answered(round_trip)
    assert wait(wait_policy) > 0.06


@pytest.mark.parametrize("plain_s", [0.001, 0.05, 1.0])
def test_wait_is_never_long(plain_s: float) -> None:
    assert wait(learned(0.9, plain_s)) <= MOST_WAIT_S
    assert wait(learned(30, plain_s)) == 0


@pytest.mark.parametrize(
    ("right", "round_trip_s", "waits"),
    [(4, 0.04, True), (4, 0.1, False), (1, 0.02, True), (1, 0.05, False), (0, 0.001, False)],
)
def test_waiting_lasts_where_it_gives_more_than_going_on(right: int, round_trip_s: float, waits: bool) -> None:
    """A plain step takes 50 ms; of four right guesses, those that are left after it are worth as much as before."""
    assert (wait(learned(round_trip_s, 0.05, right)) > 0) == waits


def busy(wait_policy: WaitPolicy, round_trip_s: float, right: int, drafts: int = 40) -> WaitPolicy:
    """The same hub, where most of the time passes in its queue."""
    for _ in range(drafts):
        wait_policy.asks(CHAIN)
        wait_policy.answered(round_trip_s, queued_share=0.6)
        see(wait_policy, right)
    return wait_policy


def test_who_asks_a_busy_hub_waits_for_it() -> None:
    """Alone it would go on meanwhile: of four right guesses, those that are left are worth as much."""
    assert wait(learned(0.1, 0.05)) == 0
    shared = busy(learned(0.1, 0.05), 0.1, right=4)
    assert shared.asks(CHAIN)
    assert wait(shared) >= 0.1


def test_a_busy_hub_that_waiting_does_not_pay_for_is_left_to_others() -> None:
    shared = busy(learned(0.1, 0.05, right=2), 0.1, right=2)
    assert sum(shared.asks(CHAIN) for _ in range(60)) < 10
    assert shared.why_off == LATE
    shared = busy(shared, 0.03, right=2)
    assert all(shared.asks(CHAIN) for _ in range(60)), "waiting pays once others have left"


def test_wait_ends_when_it_has_cost_what_a_tree_can_bring() -> None:
    wait_policy = learned(0.01, 0.05, right=1)
    wait_policy.answered(0.06)  # now few drafts are sure to be there within 60 ms
    assert wait_policy.round_trips.upper_s > 0.06
    assert 0.02 < wait(wait_policy) < 0.05


def test_what_has_passed_is_not_waited_for_again() -> None:
    wait_policy = learned(0.03, 0.05)
    assert wait(wait_policy, elapsed_s=0.02) == pytest.approx(wait(wait_policy) - 0.02)
    assert wait(wait_policy, elapsed_s=0.2) == 0


def test_less_is_left_to_wait_for_when_the_answer_has_gone_on() -> None:
    wait_policy = learned(0.03, 0.05)
    assert wait(wait_policy) > 0
    assert wait(wait_policy, elapsed_s=0.0, walked=3) == 0


def test_own_guesses_that_are_worth_more_are_not_waited_past() -> None:
    wait_policy = learned(0.04, 0.05)
    own = RoundDraft(TREE, NGRAM, expected=4.9)
    assert wait(wait_policy) > 0
    assert wait(wait_policy, without=own) == 0
    theirs = wait_policy.judge(TREE)
    assert not wait_policy.prefers(PLAIN, theirs)
    assert wait_policy.prefers(RoundDraft(TREE, NGRAM, expected=theirs.expected + 0.1), theirs)


def waits_until_retry(wait_policy: WaitPolicy) -> int:
    for count in range(10 * MOST_RETRY):
        if wait(wait_policy) > 0:
            return count
    raise AssertionError("never waited again")


def slow_while_nobody_waits() -> WaitPolicy:
    """A hub that was quick once, on the cores that the target uses too."""
    wait_policy = learned(0.01, 0.05, drafts=4)
    for _ in range(60):
        wait_policy.answered(0.3)
    return wait_policy


def test_hub_that_is_slow_only_while_nobody_waits_is_found_out() -> None:
    wait_policy = slow_while_nobody_waits()
    assert waits_until_retry(wait_policy) == FIRST_RETRY
    wait_policy.answered(0.02)
    assert wait(wait_policy) >= 0.02


def test_a_retry_that_is_lost_with_its_connection_makes_the_next_trial_no_quicker_than_it_is() -> None:
    wait_policy = slow_while_nobody_waits()
    waits_until_retry(wait_policy)
    while not wait_policy.asks(CHAIN):
        assert wait_policy.why_off == LATE
    wait_policy.answered(0.3)
    assert wait_policy.round_trips.smoothed_s == pytest.approx(0.3, rel=0.01)


def test_hub_that_stays_slow_is_believed() -> None:
    wait_policy = slow_while_nobody_waits()
    waits_until_retry(wait_policy)
    wait_policy.answered(0.3)
    assert all(wait(wait_policy) == 0 for _ in range(200))


def test_dead_hub_costs_less_than_two_waits() -> None:
    wait_policy = learned(0.03, 0.1)
    usual = wait(wait_policy)
    waits, silences = [], []
    for _ in range(40):
        waits.append(wait(wait_policy))
        silences.append(wait_policy.silence_s)
        wait_policy.given_up()
    assert 0 < sum(waits) < 2 * usual
    assert silences[:4] == [1, 2, 4, 8]
    assert max(silences) == 30
    wait_policy.answered(0.03)
    assert wait(wait_policy) >= 0.03


def test_fixed_wait_is_kept_but_for_a_silent_hub() -> None:
    wait_policy = WaitPolicy(fixed_wait_s=8)
    for _ in range(20):
        wait_policy.cost_model.times.add(1, 0.001)
        wait_policy.answered(5)
        see(wait_policy, 0)
    assert wait_policy.asks(CHAIN)
    assert wait(wait_policy) == 8
    assert wait_policy.judge(TREE).tree == TREE
    assert not wait_policy.prefers(RoundDraft(TREE, NGRAM, expected=5.0), wait_policy.judge(TREE))
    assert wait_policy.silence_s >= 8
    waits = []
    for _ in range(20):
        waits.append(wait(wait_policy))
        wait_policy.given_up()
    assert sum(waits) < 2 * 8


# Asking.


def gaps(wait_policy: WaitPolicy, rounds: int, right: int) -> list[int]:
    """Rounds from one request to the next; every answer takes 10 ms and is right for so many levels."""
    asked = []
    for number in range(rounds):
        if wait_policy.asks(CHAIN):
            asked.append(number)
            wait_policy.answered(0.01)
            see(wait_policy, right)
    return [later - earlier for earlier, later in pairwise(asked)]


def test_a_drafter_that_is_always_wrong_is_asked_ever_more_rarely_and_never_verified() -> None:
    wait_policy = learned(0.01, 0.05)
    seen = gaps(wait_policy, 500, right=0)
    assert [gap for gap in seen if gap > 1][:6] == [FIRST_GAP + 1, 9, 17, MOST_GAP + 1, MOST_GAP + 1, MOST_GAP + 1]
    assert seen.index(FIRST_GAP + 1) < 80, "so long is a good drafter remembered"
    assert wait_policy.why_off == POOR
    assert wait(wait_policy) == 0
    assert len(wait_policy.judge(TREE).tree) == 0


def test_a_drafter_that_became_good_is_asked_in_every_round_again() -> None:
    wait_policy = learned(0.01, 0.05, right=0)
    gaps(wait_policy, 400, right=0)
    seen = gaps(wait_policy, 100, right=4)
    assert seen[-1] == 1
    assert sum(gap > 1 for gap in seen) <= 4
    assert wait_policy.why_off == ""
    assert len(wait_policy.judge(TREE).tree) == 4


def test_a_hub_without_guesses_is_not_waited_for() -> None:
    wait_policy = learned(0.01, 0.05)
    for _ in range(150):
        wait_policy.cost_model.estimator.expect(DraftTree.empty(), 4, [9])
        wait_policy.answered(0.01)
    assert not wait_policy.asks(CHAIN)
    assert wait(wait_policy) == 0
    assert wait_policy.why_off == EMPTY


def test_a_hub_out_of_reach_is_asked_rarely_and_believed_when_it_comes_near() -> None:
    wait_policy = learned(0.5, 0.05)
    answers = [wait_policy.asks(CHAIN) for _ in range(200)]
    assert sum(answers) <= 10
    assert wait_policy.why_off == LATE
    assert any(wait_policy.asks(CHAIN) for _ in range(MOST_GAP + 1))
    wait_policy.answered(0.01)
    assert wait_policy.asks(CHAIN)
    assert wait(wait_policy) >= 0.01


def test_a_plain_step_is_timed_now_and_then_where_that_may_decide() -> None:
    wait_policy = learned(0.01, 0.05, right=0)
    for _ in range(10):
        see(wait_policy, 1)
        see(wait_policy, 0)
    for _ in range(RETIMED_AFTER):
        assert len(wait_policy.judge(TREE).tree) > 0
        wait_policy.cost_model.times.add(3, 0.053)
    assert wait_policy.judge(TREE).why_off == TIMED
    wait_policy.cost_model.times.add(1, 0.05)
    assert len(wait_policy.judge(TREE).tree) > 0


def test_a_clock_too_coarse_to_see_rounds_or_drafts_is_no_error() -> None:
    wait_policy = learned(0.0, 0.0)
    assert wait_policy.asks(CHAIN)
    assert wait(wait_policy) == 0
    assert len(wait_policy.judge(TREE).tree) == len(TREE)


@pytest.mark.parametrize("fixed_wait_s", [None, 0.5])
def test_a_hub_may_be_silent_for_ever(fixed_wait_s: float | None) -> None:
    wait_policy = learned(0.03, 0.05) if fixed_wait_s is None else WaitPolicy(fixed_wait_s)
    for _ in range(2000):
        wait_policy.given_up()
    assert wait_policy.silence_s == MOST_SILENCE_S
    assert wait(wait_policy) == pytest.approx(0, abs=1e-6)
    wait_policy.prefilled()
    assert wait(wait_policy) > 0.01


# What may come of a request: a chain of two levels, each true in half the cases, a plain step of 1 s, a row 0.1 s.

HALF = ExpectedGain([1.0, 0.5, 0.25], np.array([1.0, 1.1, 1.2]), 1.0)


def test_the_best_way_weighs_waiting_against_going_on() -> None:
    assert HALF.tokens_per_s(0.0) == pytest.approx(1.75 / 1.2)
    # Waiting 0.4 s for it, or one plain step first: half a chance that half a token is left.
    assert HALF.tokens_per_s(0.4) == pytest.approx(max(1.75 / 1.6, 1.75 / 1.55))
    assert HALF.tokens_per_s(0.9) == pytest.approx((1 + 0.5 + 0.25) / (1 + 0.5 * 1.1))
    assert HALF.tokens_per_s(5.0) < 1


def test_waiting_is_chosen_where_it_gives_most() -> None:
    plain = (1.0, 1.0)
    assert HALF.waits(0.1, 0, plain, 1.2)
    assert not HALF.waits(0.6, 0, plain, 1.2)
    assert not HALF.waits(0.1, 0, (3.0, 1.1), 1.2)
    assert not HALF.waits(0.0, 2, plain, 1.0), "nothing is left to wait for"


def test_no_wait_is_longer_than_a_tree_can_pay_for() -> None:
    assert HALF.longest_wait_s(0, 1.0) == pytest.approx(1.75 - 1.2)
    assert HALF.longest_wait_s(1, 1.0) == pytest.approx(0.75 - 0.5 * 1.1)
    assert HALF.longest_wait_s(2, 1.0) == 0
