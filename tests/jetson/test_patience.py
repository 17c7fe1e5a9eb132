"""How long a round waits for the hub."""

from __future__ import annotations

import pytest

from starsd_jetson.patience import FIRST_RETRY, FIRST_WAIT_S, MOST_RETRY, MOST_WAIT_S, Patience


def learned(round_trip_s: float, own_round_s: float, drafts: int = 50) -> Patience:
    patience = Patience()
    for _ in range(drafts):
        patience.own_round(own_round_s)
        patience.answered(round_trip_s)
    return patience


def test_steady_hub_is_given_the_time_it_takes() -> None:
    assert 0.1 <= learned(0.1, 0.05).wait_s(depth=4) < 0.11


def test_unsteady_hub_is_given_more() -> None:
    patience = Patience()
    for round_trip in [0.05, 0.15] * 20:
        patience.own_round(0.05)
        patience.answered(round_trip)
    assert patience.wait_s(depth=4) > 0.15


@pytest.mark.parametrize("own_round_s", [0.001, 0.05, 10])
def test_wait_is_never_long(own_round_s: float) -> None:
    assert learned(0.9, own_round_s).wait_s(depth=8) <= MOST_WAIT_S
    assert learned(30, own_round_s).wait_s(depth=8) == 0


def test_hub_slower_than_what_a_tree_saves_is_not_waited_for() -> None:
    assert learned(0.5, own_round_s=0.02).wait_s(depth=4) == 0
    assert learned(0.5, own_round_s=0.2).wait_s(depth=4) >= 0.5


def test_hub_that_became_fast_again_is_waited_for_again() -> None:
    patience = learned(0.9, own_round_s=0.03)
    assert patience.wait_s(depth=4) == 0
    for _ in range(30):
        patience.answered(0.01)
    assert patience.wait_s(depth=4) >= 0.01


def waits_until_retry(patience: Patience) -> int:
    for count in range(10 * MOST_RETRY):
        if patience.wait_s(depth=4) > 0:
            return count
    raise AssertionError("never waited again")


def test_hub_that_is_slow_only_while_nobody_waits_is_found_out() -> None:
    patience = learned(0.9, own_round_s=0.03)
    assert waits_until_retry(patience) == FIRST_RETRY
    patience.answered(0.2)
    assert 0.2 <= patience.wait_s(depth=4) <= MOST_WAIT_S


def test_hub_that_stays_slow_is_tried_ever_more_rarely() -> None:
    patience = learned(0.9, own_round_s=0.03)
    counts = []
    for _ in range(6):
        counts.append(waits_until_retry(patience))
        patience.answered(0.9)
    assert counts == [8, 16, 32, 64, 64, 64]


def test_dead_hub_costs_less_than_twice_the_first_wait() -> None:
    patience = Patience()
    patience.own_round(0.1)
    waits, silences = [], []
    for _ in range(40):
        waits.append(patience.wait_s(depth=4))
        silences.append(patience.silence_s)
        patience.given_up()
    assert sum(waits) < 2 * FIRST_WAIT_S
    assert silences[:4] == [1, 2, 4, 8]
    assert max(silences) == 30


def test_fixed_wait_is_kept_but_for_a_silent_hub() -> None:
    patience = Patience(fixed_wait_s=8)
    for _ in range(20):
        patience.own_round(0.001)
        patience.answered(5)
    assert patience.wait_s(depth=1) == 8
    assert patience.silence_s >= 8
    waits = []
    for _ in range(20):
        waits.append(patience.wait_s(depth=4))
        patience.given_up()
    assert sum(waits) < 2 * 8


def test_an_answer_restores_patience() -> None:
    patience = learned(0.1, 0.05)
    patience.given_up()
    patience.given_up()
    assert patience.wait_s(depth=4) < 0.05
    patience.answered(0.1)
    assert patience.wait_s(depth=4) >= 0.1
