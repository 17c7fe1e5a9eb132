"""The shapes of drafts on the hub: what each session learnt, and what all of them together leave to each.

Every session has a controller (`planning.shape_controller`) that learns from its own rounds. From time to time all of
those that ask are weighed against each other (`planning.draft_shape`), by what the drafter was measured to cost and by
what targets report of their rounds. What a target reports is held to what its returns have room for: beyond that, a
wrong report makes only its own drafts worse, and on a hub that has too much to do it may keep drafts for longer than it
should. A target that reports nothing gets what it asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from starsd_edge.planning.curve import VerifyCurve
from starsd_edge.planning.draft_shape import ShapeChoice, Wish, share_hub
from starsd_edge.planning.shape_controller import ShapeController
from starsd_edge.protocol.codes import FIXED
from starsd_edge.protocol.counters import PathStep
from starsd_edge.protocol.hub_side import HubConnection
from starsd_edge.protocol.messages import Report
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.hub_facts import ShapeFacts
from starsd_edge.telemetry.latency import LONGEST_RETURN_S
from starsd_edge.telemetry.service_model import ServiceCost

ACTIVE_S = 3.0
"""A session that has not asked for so long is no load."""
LEAST_RETURN_S = 1e-6
MOST_NODES = 64
"""Largest tree that is weighed: how many nodes of a larger one pay need not be known exactly."""


@dataclass(frozen=True)
class WishOf:
    """What a session would like, and of which drafter."""

    session: int
    drafter: str
    wish: Wish


@dataclass
class _Session:
    """One session's part.

    Attributes:
        limit: the most that it has asked for.
        base_len: of its last request.
        nodes: of its last draft.
        held_to: share of the times that the target reports which its last return had room for.
    """

    controller: ShapeController
    connection: HubConnection
    limit: DraftShape
    base_len: int
    asked_at: float
    nodes: int = 0
    held_to: float = 1.0

    @property
    def curve(self) -> VerifyCurve | None:
        """The target's rounds by their rows, none longer than its returns are: else it would look like no load."""
        told = curve_of(self.connection.report)
        return None if told is None else told.scaled(self.held_to)


@dataclass
class ShapeControllers:
    """The controllers of all sessions; a `ShapeChooser`. All methods belong to the event loop.

    Attributes:
        clock: monotonic seconds.
        fixed: the same for all instead.
    """

    clock: Callable[[], float]
    fixed: DraftShape | None = None
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _last: WeakKeyDictionary[HubConnection, ShapeController] = field(default_factory=WeakKeyDictionary)
    """Of each target, the controller that asked last: the next session goes on from there."""

    def judged(self, session: int, steps: Sequence[PathStep]) -> None:
        """See `ShapeChooser`."""
        known = self._sessions.get(session)
        if known is not None:
            known.controller.judged(steps)

    def choose(self, session: int, connection: HubConnection, base_len: int, asked: DraftShape) -> DraftShape:
        """See `ShapeChooser`."""
        if self.fixed is not None:
            return self.fixed.within(asked)
        now = self.clock()
        known = self._sessions.get(session)
        if known is None:
            before = self._last.get(connection)
            controller = ShapeController() if before is None else before.successor()
            known = self._sessions[session] = _Session(controller, connection, asked, base_len, now)
        known.controller.progressed(max(0, base_len - known.base_len))
        known.connection, known.base_len, known.asked_at = connection, base_len, now
        known.limit = _larger(known.limit, asked)
        self._last[connection] = known.controller
        return known.controller.shape(asked)

    def drafted(self, session: int, nodes: int) -> None:
        """A tree of so many nodes goes out."""
        known = self._sessions.get(session)
        if known is not None:
            known.nodes = nodes

    def returned(self, session: int, seconds: float | None) -> None:
        """So long after that the session asks again; None where that was no round."""
        known = self._sessions.get(session)
        if known is None or seconds is None or seconds > LONGEST_RETURN_S:
            return
        told = curve_of(known.connection.report)
        if told is not None:
            own_s = told.at(known.nodes + 1)
            known.held_to = min(1.0, max(seconds, LEAST_RETURN_S) / own_s)
            known.controller.returned(seconds, known.held_to * own_s)

    def left(self, session: int) -> None:
        """Its target is away: until it asks again, it has no share in the hub."""
        known = self._sessions.get(session)
        if known is not None:
            known.asked_at = -math.inf

    def forget(self, session: int) -> None:
        """The session is gone."""
        self._sessions.pop(session, None)

    def wishes(self) -> list[WishOf]:
        """Of the sessions that ask these days and of which enough is known."""
        now = self.clock()
        found = []
        for session, known in self._sessions.items():
            terms, curve = known.connection.terms, known.curve
            if terms is None or curve is None or now - known.asked_at > ACTIVE_S:
                continue
            wish = known.controller.wish(curve, curve.at(1), known.limit.clamp(MOST_NODES, MOST_NODES))
            if wish is not None:
                found.append(WishOf(session, terms.drafter, wish))
        return found

    def take(self, choices: Mapping[int, ShapeChoice]) -> None:
        """What came of the wishes, by session."""
        for session, choice in choices.items():
            known = self._sessions.get(session)
            if known is not None:
                known.controller.choose(choice)

    def facts(self, connection: HubConnection) -> ShapeFacts:
        """Of the session of this target that asked last."""
        if self.fixed is not None:
            return ShapeFacts(FIXED, self.fixed.max_nodes, self.fixed.max_depth, self.fixed.branching)
        controller = self._last.get(connection)
        if controller is None:
            return ShapeFacts()
        shape = controller.present
        survival = [round(each, 3) for each in controller.survival.guesses.survival]
        return ShapeFacts(
            why=controller.why,
            nodes=0 if shape is None else shape.max_nodes,
            depth=0 if shape is None else shape.max_depth,
            branching=0 if shape is None else shape.branching,
            gain=round(controller.gain, 3),
            survival=survival,
        )


def share(wishes: Sequence[WishOf], costs: Mapping[str, ServiceCost], max_batch: int) -> dict[int, ShapeChoice]:
    """What each session gets of its drafter. Pure, so it may run on any thread.

    Drafters take turns on one thread, so those that are weighed together are all that want the same one; where several
    are busy each believes itself alone, and the queue tells by longer returns.
    """
    choices: dict[int, ShapeChoice] = {}
    for drafter, cost in costs.items():
        of_it = [each for each in wishes if each.drafter == drafter]
        if of_it:
            shared = share_hub([each.wish for each in of_it], cost, max_batch)
            choices.update(zip((each.session for each in of_it), shared, strict=True))
    return choices


def curve_of(report: Report | None) -> VerifyCurve | None:
    """What a target tells of its rounds by their rows; None where it tells nothing that can be used."""
    if report is None or not report.pass_rows or not report.pass_us or len(report.pass_rows) != len(report.pass_us):
        return None
    pairs = zip(report.pass_rows, report.pass_us, strict=True)
    return VerifyCurve.of_rounds({rows: us / 1e6 for rows, us in pairs})


def _larger(one: DraftShape, other: DraftShape) -> DraftShape:
    """What fits either: near the end of a text a target asks for less than it could use."""
    return DraftShape(
        max(one.max_nodes, other.max_nodes), max(one.max_depth, other.max_depth), max(one.branching, other.branching)
    )
