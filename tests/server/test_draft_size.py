"""Draft shapes at the hub in made-up time: its protocol machine and controllers. Drafter, targets, links are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from starsd_edge.protocol.codes import BEST, FIRST, FIXED, LOAD, NOT_PAYING, TRIAL
from starsd_edge.protocol.hub_side import DropSession, QueueDraft
from starsd_edge.protocol.messages import Close, Draft, DraftRequest, Report
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.service_model import ServiceCost
from starsd_server.draft_size import ShapeControllers, curve_of, share
from tests.support.costs import draft_cost
from tests.support.wire import HubUnderTest, Peer, only

COST = draft_cost(0.0015, level_s=0.002)
SHARE_S = 0.25
ASKED = DraftShape(8, 8)
MOST_ROWS = 3000
LUCK = np.random.default_rng(5).random(MOST_ROWS + 100).tolist()
"""Of each position, so that a guess for it comes true or not whenever it is made."""


@dataclass
class Spoke:
    """A target whose text is 1, 2, 3 ... over and over.

    Attributes:
        verify_s: of a pass, by its rows.
        link_s: both ways together.
        right: of the guess for a position: does it come true?
        reports: whether it tells of its rounds.
        beside: another answer of the same target, with which this one takes turns.
    """

    verify_s: Callable[[int], float] = lambda rows: 0.030 * (1 + 0.02 * (rows - 1))
    link_s: float = 0.001
    right: Callable[[int], bool] = lambda position: LUCK[position] < 0.8
    reports: bool = True
    beside: Spoke | None = None
    peer: Peer = field(init=False)
    free_at: list[float] = field(init=False)
    """When the target's device is."""
    tag: bytes = b""
    epoch: int = 0
    n: int = 2
    sent: int = 0
    widths: dict[int, float] = field(default_factory=dict)
    shapes: list[int] = field(default_factory=list)
    """Levels of each draft."""


def token(position: int) -> int:
    return 1 + position % 40


class Star:
    """One hub, one drafter that serves one request at a time, some targets."""

    def __init__(self, *spokes: Spoke, cost: ServiceCost = COST, fixed: DraftShape | None = None) -> None:
        self.now = 100.0
        self.controllers = ShapeControllers(lambda: self.now, fixed)
        self.hub = HubUnderTest(shapes=self.controllers)
        self.cost = cost
        self.spokes = spokes
        self.free_at = 0.0
        self.shared_at = self.now
        self.texts = 0
        for number, spoke in enumerate(spokes):
            other = spoke.beside
            spoke.free_at = [0.0] if other is None else other.free_at
            spoke.peer = self.hub.connect(f"key{number}", max_tree=32, max_depth=16) if other is None else other.peer
            self.open(spoke)
        self.hub.done.clear()
        self.next_at = {number: self.now + 0.003 * number for number in range(len(spokes))}

    def open(self, spoke: Spoke) -> None:
        """A new text begins."""
        self.texts += 1
        spoke.tag = spoke.peer.open(ref=self.texts, t_first=token(0))
        spoke.epoch, spoke.n, spoke.sent = 0, 2, 0

    def run(self, seconds: float) -> None:
        """Let all of them go on for so long."""
        until = self.now + seconds
        while min(self.next_at.values()) < until:
            number = min(self.next_at, key=self.next_at.__getitem__)
            self.now = self.next_at[number]
            self.next_at[number] = self.round(self.spokes[number])
            if self.now - self.shared_at >= SHARE_S:
                self.shared_at = self.now
                self.controllers.take(share(self.controllers.demands(), {"ngram": self.cost}, 1))
        self.now = until

    def round(self, spoke: Spoke) -> float:
        """One round; when the next begins."""
        if spoke.n > MOST_ROWS:
            spoke.peer.say(Close(spoke.tag))
            self.open(spoke)
            self.hub.done.clear()
        spoke.epoch += 1
        rows = [token(row + 1) for row in range(spoke.sent, spoke.n)]
        request = DraftRequest(spoke.tag, spoke.epoch, spoke.n, spoke.sent, rows, *vars_of(ASKED))
        self.hub.now = self.now
        told = spoke.peer.say(request)
        spoke.sent = spoke.n
        queued = [action for action in self.hub.done if isinstance(action, QueueDraft)]
        self.hub.done.clear()
        if queued:
            self.controllers.returned(queued[0].session, queued[0].returned_s)
            began = max(self.now, self.free_at)
            self.free_at = began + self.cost.line(queued[0].shape)[0] + self.cost.line(queued[0].shape)[1]
            self.hub.now = self.free_at
            tree = guesses(spoke, queued[0].shape.max_depth)
            self.controllers.drafted(queued[0].session, len(tree))
            told = self.hub.answer(spoke.peer, queued[0], tree)
        draft = only(Draft, told)
        spoke.shapes.append(len(draft.ids))
        verify_s = spoke.verify_s(1 + len(draft.ids))
        spoke.widths[1 + len(draft.ids)] = verify_s
        spoke.n += 1 + accepted(draft, spoke.n)
        if spoke.reports:
            report(spoke)
        began = max((self.free_at if queued else self.now) + spoke.link_s, spoke.free_at[0])
        spoke.free_at[0] = began + verify_s
        return spoke.free_at[0]


def vars_of(shape: DraftShape) -> tuple[int, int, int]:
    return shape.max_nodes, shape.max_depth, shape.branching


def guesses(spoke: Spoke, depth: int) -> DraftTree:
    positions = range(spoke.n + 1, spoke.n + 1 + depth)
    return DraftTree.chain([token(position) if spoke.right(position) else 99 for position in positions])


def accepted(draft: Draft, n: int) -> int:
    count = 0
    while count < len(draft.ids) and draft.ids[count] == token(n + 1 + count):
        count += 1
    return count


def report(spoke: Spoke) -> None:
    widths = sorted(spoke.widths)[:16]
    us = [round(1e6 * spoke.widths[rows]) for rows in widths]
    spoke.peer.say(Report(1, 1, 0, 1, 1, 1, 1, 1, "", widths, us))


def test_a_target_that_tells_nothing_gets_what_it_asks_for() -> None:
    spoke = Spoke(reports=False)
    star = Star(spoke)
    star.run(10)
    assert set(spoke.shapes) == {8}
    assert star.controllers.facts(spoke.peer.connection).why == FIRST


def test_a_good_drafter_is_asked_for_as_much_as_pays() -> None:
    spoke = Spoke()
    star = Star(spoke)
    star.run(20)
    facts = star.controllers.facts(spoke.peer.connection)
    assert (facts.why, facts.depth) == (BEST, spoke.shapes[-1])
    assert 4 <= spoke.shapes[-1] <= 8
    assert facts.gain > 1.5
    assert facts.survival[0] == pytest.approx(0.8, abs=0.1)


def test_a_long_link_makes_drafts_longer() -> None:
    near, far = (Spoke(link_s=link_s, right=lambda position: LUCK[position] < 0.7) for link_s in (0.0005, 0.020))
    for spoke in (near, far):
        Star(spoke, cost=draft_cost(0.0, level_s=0.006)).run(20)
    assert near.shapes[-1] < far.shapes[-1]


def test_speculation_that_does_not_pay_ends_and_is_tried_again_less_and_less() -> None:
    spoke = Spoke(right=lambda position: False)
    star = Star(spoke)
    star.run(60)
    drafting = [number for number, levels in enumerate(spoke.shapes) if levels]
    assert drafting[0] == 0
    first_off = spoke.shapes.index(0)
    assert first_off < 20
    drafted = sum(spoke.shapes)
    assert drafted < 0.1 * len(spoke.shapes) + 8 * 20
    late = spoke.shapes[len(spoke.shapes) // 2 :]
    assert 0 < sum(levels > 0 for levels in late) < 0.1 * len(late)
    assert star.controllers.facts(spoke.peer.connection).why in (NOT_PAYING, TRIAL)


def test_a_drafter_that_becomes_good_is_found_again() -> None:
    good = [False]
    spoke = Spoke(right=lambda position: good[0])
    star = Star(spoke)
    star.run(15)
    assert spoke.shapes[-1] == 0
    good[0] = True
    star.run(40)
    assert min(spoke.shapes[-50:]) >= 6


def test_many_targets_get_shorter_drafts_than_one_and_all_still_gain() -> None:
    alone, crowd = Spoke(), [Spoke() for _ in range(8)]
    Star(alone).run(15)
    star = Star(*crowd)
    star.run(15)
    assert max(spoke.shapes[-1] for spoke in crowd) < alone.shapes[-1]
    assert min(spoke.shapes[-1] for spoke in crowd) >= 1
    whys = {star.controllers.facts(spoke.peer.connection).why for spoke in crowd}
    assert LOAD in whys
    as_asked = [Spoke(reports=False) for _ in range(8)]
    Star(*as_asked).run(15)
    assert sum(spoke.n for spoke in crowd) > 1.2 * sum(spoke.n for spoke in as_asked)


def test_answers_that_take_turns_hide_each_others_round_trips_and_get_drafts_where_one_alone_would_not() -> None:
    far = {"link_s": 0.025, "right": lambda position: LUCK[position] < 0.5}
    cost = draft_cost(0.010, level_s=0.001)
    alone = Spoke(**far)  # type: ignore[arg-type]
    Star(alone, cost=cost).run(30)
    assert sum(levels > 0 for levels in alone.shapes) < 0.25 * len(alone.shapes)
    first = Spoke(**far)  # type: ignore[arg-type]
    turns = [first, *(Spoke(**far, beside=first) for _ in range(3))]  # type: ignore[arg-type]
    star = Star(*turns, cost=cost)
    star.run(30)
    for spoke in turns:
        assert sum(levels > 0 for levels in spoke.shapes) > 0.9 * len(spoke.shapes)
    assert 1 < star.controllers.facts(first.peer.connection).gain < 2
    assert sum(spoke.n for spoke in turns) > 1.25 * (alone.n if alone.n < MOST_ROWS else 0)


def test_levels_change_slowly() -> None:
    crowd = [Spoke() for _ in range(6)]
    Star(*crowd).run(15)
    for spoke in crowd:
        shapes = [levels for levels in spoke.shapes[30:] if levels]
        changes = [number for number in range(1, len(shapes)) if shapes[number] != shapes[number - 1]]
        assert all(abs(shapes[number] - shapes[number - 1]) == 1 for number in changes)
        assert all(later - earlier >= 8 for earlier, later in pairwise(changes))


def test_the_next_text_of_a_target_begins_with_what_is_known() -> None:
    spoke = Spoke(right=lambda position: False)
    star = Star(spoke)
    star.run(10)
    assert spoke.shapes[-1] == 0
    spoke.peer.say(Close(spoke.tag))
    only(DropSession, star.hub.done)
    star.open(spoke)
    star.hub.done.clear()
    rounds = len(spoke.shapes)
    star.run(0.5)
    assert 0 in spoke.shapes[rounds : rounds + 2], spoke.shapes[rounds - 20 :]


def test_a_fixed_shape_is_kept_within_what_is_asked() -> None:
    spoke = Spoke(right=lambda position: False)
    star = Star(spoke, fixed=DraftShape(3, 3, 1))
    star.run(10)
    assert set(spoke.shapes) == {3}
    facts = star.controllers.facts(spoke.peer.connection)
    assert (facts.why, facts.nodes, facts.depth) == (FIXED, 3, 3)
    wide = Star(Spoke(), fixed=DraftShape(20, 20, 4))
    wide.run(1)
    assert set(wide.spokes[0].shapes) == {8}


def test_a_session_that_is_gone_or_silent_is_no_load() -> None:
    one, other = Spoke(), Spoke()
    star = Star(one, other)
    star.run(10)
    assert len(star.controllers.demands()) == 2
    star.controllers.forget(star.controllers.demands()[0].session)
    assert len(star.controllers.demands()) == 1
    star.now += 10
    assert star.controllers.demands() == []


@pytest.mark.parametrize(("rows", "us"), [(None, None), ([], []), ([1, 2], [3]), ([1], None), (None, [1])], ids=str)
def test_reports_without_usable_times_are_no_curve(rows: list[int] | None, us: list[int] | None) -> None:
    assert curve_of(Report(1, 1, 0, 1, 1, 1, 1, 1, "", rows, us)) is None
    assert curve_of(None) is None


def test_a_curve_is_made_of_whatever_rounds_there_were() -> None:
    curve = curve_of(Report(1, 1, 0, 1, 1, 1, 1, 1, "", [6], [46_000]))
    assert curve is not None
    assert curve.at(1) == pytest.approx(0.040)
    assert curve.at(11) == pytest.approx(0.052)
    falling = curve_of(Report(1, 1, 0, 1, 1, 1, 1, 1, "", [4, 2, 1, 1], [30_000, 50_000, 20_000, 25_000]))
    assert falling is not None
    assert (falling.at(2), falling.at(4)) == (0.030, 0.030)


@pytest.mark.parametrize("told_s", [60.0, 1e-6])
def test_wrong_reports_of_one_target_leave_the_others_their_drafts(told_s: float) -> None:
    honest, liar = Spoke(), Spoke()
    star = Star(honest, liar)
    star.run(5)
    liar.reports = False
    liar.peer.say(times_of(told_s))
    star.run(10)
    assert 3 <= honest.shapes[-1] <= 8


def test_a_target_cannot_say_that_it_takes_longer_than_it_does() -> None:
    """Else it would look like no load, and the hub would be shared wrongly."""
    spoke = Spoke()
    star = Star(spoke)
    star.run(3)
    spoke.reports = False
    spoke.peer.say(times_of(60.0))
    star.run(1)
    (demand,) = star.controllers.demands()
    assert demand.demand.verify.at(1 + spoke.shapes[-1]) <= 0.040


def times_of(seconds: float) -> Report:
    return Report(1, 1, 0, 1, 1, 1, 1, 1, "", [1, 9], [round(1e6 * seconds)] * 2)
