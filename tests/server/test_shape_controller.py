"""How a session's shape follows what is wished for: slowly, never because of one late answer, and off when it costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from starsd_edge.planning.hub_share import NOTHING, ShapeChoice, share_hub
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.protocol.codes import BEST, FIRST, LOAD, NOT_PAYING, TRIAL
from starsd_edge.protocol.counters import PathStep
from starsd_edge.speculation.tree import DraftShape
from starsd_server.draft_size import (
    FIRST_GAP_TOKENS,
    MOST_GAP_TOKENS,
    ROUNDS_PER_CHANGE,
    ShapeController,
)
from tests.support.costs import draft_cost

ASKED = DraftShape(8, 8, 2)
HIT, MISS = [PathStep(1, 1)], [PathStep(1, 0)]


def chain(depth: int) -> DraftShape:
    return DraftShape(depth, depth)


def wished(depth: int, why: str = BEST) -> ShapeChoice:
    return ShapeChoice(chain(depth), why, 1.5)


def depths(controller: ShapeController, choice: ShapeChoice, rounds: int) -> list[int]:
    """Of each round, while the same is wished for."""
    seen = []
    for _ in range(rounds):
        seen.append(controller.shape(ASKED).max_depth)
        controller.judged(HIT)
        controller.choose(choice)
    return seen


def known() -> ShapeController:
    """A controller that has seen enough to choose."""
    controller = ShapeController()
    for _ in range(ROUNDS_PER_CHANGE):
        controller.judged(HIT)
    return controller


def at(depth: int) -> ShapeController:
    controller = known()
    controller.choose(wished(depth))
    return controller


def test_until_something_is_known_the_target_gets_what_is_expected_of_any_drafter() -> None:
    controller = ShapeController()
    assert (controller.shape(ASKED), controller.why, controller.present) == (ASKED, FIRST, None)
    for number in range(ROUNDS_PER_CHANGE):
        controller.choose(wished(2 + number % 3))
        assert (controller.shape(ASKED), controller.why) == (chain(2 + number % 3), FIRST)
        controller.choose(wished(0, NOT_PAYING))
        assert controller.shape(ASKED) == ASKED, "nobody is turned away unheard"
        controller.judged(HIT)
    controller.choose(wished(5))
    assert (controller.shape(ASKED), controller.why, controller.gain) == (chain(5), BEST, 1.5)


def test_a_session_gets_no_more_than_it_asks_for() -> None:
    assert at(6).shape(DraftShape(3, 2)) == DraftShape(3, 2)
    tree = known()
    tree.choose(ShapeChoice(DraftShape(12, 4, 3), BEST, 2.0))
    assert tree.shape(DraftShape(20, 8, 2)) == DraftShape(12, 4, 2)
    assert tree.shape(DraftShape(20, 8, 1)).branching == 1


@pytest.mark.parametrize(("begin", "end"), [(2, 5), (6, 3)])
def test_it_changes_by_one_level_in_eight_rounds(begin: int, end: int) -> None:
    seen = depths(at(begin), wished(end), 60)
    changes = [number for number in range(1, 60) if seen[number] != seen[number - 1]]
    assert seen[-1] == end
    assert all(abs(seen[number] - seen[number - 1]) == 1 for number in changes)
    assert all(later - earlier >= ROUNDS_PER_CHANGE for earlier, later in pairwise(changes))
    assert changes[0] >= ROUNDS_PER_CHANGE


def test_a_wish_that_wavers_changes_nothing() -> None:
    controller = at(4)
    for number in range(100):
        controller.judged(HIT)
        controller.choose(wished(3 if number % 2 else 5))
    assert controller.shape(ASKED) == chain(4)


def test_timeouts_change_nothing_however_long_they_are_wished_for() -> None:
    """A draft that came too late is judged by nothing: no round, no change."""
    controller = at(4)
    depths(controller, wished(4), 20)
    for _ in range(50):
        controller.choose(wished(0, NOT_PAYING))
    assert controller.shape(ASKED) == chain(4)


def test_one_return_that_is_far_off_is_not_believed() -> None:
    controller = at(4)
    curve = VerifyCurve({1: 0.030})
    assert controller.demand(curve, 0.03, ASKED) is None, "nothing came back yet"
    for _ in range(5):
        controller.returned(0.036, 0.030)
    controller.returned(2.0, 0.030)
    demand = controller.demand(curve, 0.03, ASKED)
    assert demand is not None
    assert demand.rest_s == pytest.approx(0.006)


def test_what_does_not_pay_ends_after_eight_rounds_and_is_tried_again_with_growing_gaps() -> None:
    controller = at(5)
    gaps = []
    for _ in range(8):
        for _ in range(ROUNDS_PER_CHANGE + 4):
            controller.judged(MISS)
            controller.choose(wished(0, NOT_PAYING))
        assert (controller.shape(ASKED), controller.why) == (NOTHING, NOT_PAYING)
        assert controller.demand(VerifyCurve({1: 0.03}), 0.03, ASKED) is None
        tokens = 0
        while controller.shape(ASKED) == NOTHING:
            controller.progressed(1)
            tokens += 1
        assert (controller.shape(ASKED), controller.why) == (chain(5), TRIAL), "of the shape that was given up"
        gaps.append(tokens)
    assert gaps == [min(FIRST_GAP_TOKENS << number, MOST_GAP_TOKENS) for number in range(8)]


def test_a_trial_that_pays_goes_on_and_is_forgiven() -> None:
    controller = at(3)
    for _ in range(30):
        controller.judged(MISS)
        controller.choose(wished(0, NOT_PAYING))
    controller.progressed(FIRST_GAP_TOKENS)
    assert depths(controller, wished(3), 30)[-1] == 3
    assert controller.why == BEST
    assert controller.acceptance.rates.at(1, 1) > 0.8, "what was known before its trial counts little"


def test_who_left_for_others_returns_soon_and_keeps_what_it_knows() -> None:
    controller = at(2)
    depths(controller, wished(2), 40)
    known = controller.acceptance.rates.at(1, 1)
    for _ in range(3):
        depths(controller, wished(0, LOAD), ROUNDS_PER_CHANGE + 4)
        assert controller.why == LOAD
        controller.progressed(FIRST_GAP_TOKENS)
        assert controller.why == TRIAL
        assert controller.acceptance.rates.at(1, 1) >= known


def test_the_next_session_of_a_target_begins_where_the_last_one_ended() -> None:
    first = at(4)
    depths(first, wished(0, NOT_PAYING), 20)
    following = first.successor()
    assert following.shape(ASKED) == NOTHING
    following.progressed(FIRST_GAP_TOKENS)
    following.judged(MISS)
    assert following.shape(ASKED) != NOTHING
    assert first.shape(ASKED) == NOTHING, "each goes on by itself"


@pytest.mark.parametrize(("hits", "final"), [(0.0, 0), (0.9, 8)])
def test_a_good_drafter_is_used_and_a_wrong_one_dropped(hits: float, final: int) -> None:
    """The whole loop, without a hub: chains whose guesses come true by a fixed pattern."""
    controller, curve, cost = ShapeController(), VerifyCurve({1: 0.030, 9: 0.036}), draft_cost(0.001, level_s=0.001)
    drafted = 0
    for number in range(200):
        controller.progressed(1)
        shape = controller.shape(ASKED)
        if shape == NOTHING:
            continue
        drafted += 1
        controller.judged([PathStep(1, int((number * 7 + level) % 10 < 10 * hits)) for level in range(shape.max_depth)])
        controller.returned(0.040, curve.at(shape.max_nodes + 1))
        demand = controller.demand(curve, 0.031, ASKED)
        if demand is not None:
            controller.choose(share_hub([demand], cost, 1)[0])
    if final:
        assert controller.shape(ASKED).max_depth == final
        assert controller.gain > 1.5
    else:
        assert drafted < 60, "eight rounds for each trial, and fewer and fewer trials"
