"""The draft shapes on the hub: what each session has learnt, and how the drafter's time is divided among all sessions.

Every session has a controller (`planning.shape_controller`) that learns from its own rounds. Every `SHARE_S` seconds
the drafter's time is divided among all active sessions (`planning.draft_shape`), by the measured cost of the drafter
and by the round times that targets report. A reported time is limited to what the target's return times have room for.
Beyond that a wrong report makes only the target's own drafts worse, except that on an overloaded hub the target may
keep its drafts for longer than it should. A target that reports nothing gets what it asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from starsd_edge.planning.draft_shape import ShapeChoice, Wish, share_hub
from starsd_edge.planning.pass_times import VerifyCurve
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
"""Seconds since its last request after which a session no longer counts as load."""
LEAST_RETURN_S = 1e-6
"""Seconds that a return time counts as at least, since reported times are limited relative to it."""
MOST_NODES = 64
"""Most nodes of a tree that are considered: how many more would pay need not be known exactly."""


@dataclass(frozen=True)
class WishOf:
    """One session as the choice of draft shapes sees it, and its drafter."""

    session: int
    drafter: str
    wish: Wish


@dataclass
class _Session:
    """State of one session.

    Attributes:
        limit: the largest shape that it has asked for.
        base_len: `base_len` of its last request.
        nodes: nodes of its last draft.
        held_to: factor on the times that the target reports, at most 1, so that they fit into its last return time.
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
        """Seconds of the target's rounds by their rows, none longer than its return times: otherwise it would look like
        no load.
        """
        told = curve_of(self.connection.report)
        return None if told is None else told.scaled(self.held_to)


@dataclass
class ShapeControllers:
    """The controllers of all sessions; a `ShapeChooser`. All methods belong to the event loop.

    Attributes:
        clock: monotonic seconds.
        fixed: one shape for all drafts instead; None lets the controllers choose.
    """

    clock: Callable[[], float]
    fixed: DraftShape | None = None
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _last: WeakKeyDictionary[HubConnection, ShapeController] = field(default_factory=WeakKeyDictionary)
    """For each target, the controller of the session that asked last: the next session begins with what it has learnt.
    """

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
        """A tree of this many nodes is sent."""
        known = self._sessions.get(session)
        if known is not None:
            known.nodes = nodes

    def returned(self, session: int, seconds: float | None) -> None:
        """The session asks again, `seconds` after its draft was sent; None where that was no round."""
        known = self._sessions.get(session)
        if known is None or seconds is None or seconds > LONGEST_RETURN_S:
            return
        told = curve_of(known.connection.report)
        if told is not None:
            own_s = told.at(known.nodes + 1)
            known.held_to = min(1.0, max(seconds, LEAST_RETURN_S) / own_s)
            known.controller.returned(seconds, known.held_to * own_s)

    def left(self, session: int) -> None:
        """The session's target is away: until it asks again, it counts as no load."""
        known = self._sessions.get(session)
        if known is not None:
            known.asked_at = -math.inf

    def forget(self, session: int) -> None:
        """The session is gone."""
        self._sessions.pop(session, None)

    def wishes(self) -> list[WishOf]:
        """Sessions that are active and of which enough is known, as the choice of draft shapes sees them."""
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
        """Take in the chosen shapes, by session."""
        for session, choice in choices.items():
            known = self._sessions.get(session)
            if known is not None:
                known.controller.choose(choice)

    def facts(self, connection: HubConnection) -> ShapeFacts:
        """Shape, reason and acceptance rates of this target's session that asked last."""
        if self.fixed is not None:
            return ShapeFacts(FIXED, self.fixed.max_nodes, self.fixed.max_depth, self.fixed.branching)
        controller = self._last.get(connection)
        if controller is None:
            return ShapeFacts()
        shape = controller.present
        survival = [round(each, 3) for each in controller.acceptance.rates.survival]
        return ShapeFacts(
            why=controller.why,
            nodes=0 if shape is None else shape.max_nodes,
            depth=0 if shape is None else shape.max_depth,
            branching=0 if shape is None else shape.branching,
            gain=round(controller.gain, 3),
            survival=survival,
        )


def share(wishes: Sequence[WishOf], costs: Mapping[str, ServiceCost], max_batch: int) -> dict[int, ShapeChoice]:
    """The draft shape of each session. Pure, so it may run on any thread.

    All drafters share one thread, but the time of each drafter is divided only among its own sessions. Where several
    drafters are busy, each is treated as if it were alone; the load of the others shows as longer return times.
    """
    choices: dict[int, ShapeChoice] = {}
    for drafter, cost in costs.items():
        of_it = [each for each in wishes if each.drafter == drafter]
        if of_it:
            shared = share_hub([each.wish for each in of_it], cost, max_batch)
            choices.update(zip((each.session for each in of_it), shared, strict=True))
    return choices


def curve_of(report: Report | None) -> VerifyCurve | None:
    """The round times by rows that a target reports, as a curve; None where it reports nothing that can be used."""
    if report is None or not report.pass_rows or not report.pass_us or len(report.pass_rows) != len(report.pass_us):
        return None
    pairs = zip(report.pass_rows, report.pass_us, strict=True)
    return VerifyCurve.of_rounds({rows: us / 1e6 for rows, us in pairs})


def _larger(one: DraftShape, other: DraftShape) -> DraftShape:
    """The smallest shape that holds both: near the end of a text a target asks for less than it could use."""
    return DraftShape(
        max(one.max_nodes, other.max_nodes), max(one.max_depth, other.max_depth), max(one.branching, other.branching)
    )
