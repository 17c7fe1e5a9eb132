"""The size of the hub's drafts: the draft shape of each session, and how the drafter's time is divided among them.

"Why is my draft this size?" The protocol machine asks for no more than hub, target and context allow
(`Terms.clamp` in `starsd_edge.protocol.hub_handshake`). Within that three things decide, and a drafter may find fewer
tokens than it may draft.

1. *The choice for all sessions* (`share`). Several times a second the drafter's time is divided among all active
   sessions: each gets the shape that gives it most tokens per second, and all are shortened where together they would
   need more time than the drafter has (`starsd_edge.planning.hub_share` has the rule). The choice rests on the measured
   cost of the drafter, on the round times that targets report, and on each session's return times and acceptance rates.
   A target whose sessions ask by turns runs a round of each in between: those rounds are its work, not a wait, so that
   drafts pay that would not pay for one session alone.
2. *The pace of one session* (`ShapeController`). Its shape follows the choices by at most one level in
   `ROUNDS_PER_CHANGE` judged rounds, and only where choices were larger, or smaller, than the shape for `STEADY_ROUNDS`
   of them. A timeout judges no draft token, so it changes nothing by itself; neither does a single time that is far
   off. Until the first `ROUNDS_PER_CHANGE` rounds were judged, choices rest on what is expected of any drafter: they
   are followed at once, except the choice to draft nothing. The first choice after that is taken as it is.
3. *The request* (`ShapeControllers.choose`). No draft is larger than what the target asks for. A target that reports
   no round times gets all of that, and a hub with a fixed shape gives every target that shape.

Speculation that does not pay ends after `ROUNDS_PER_CHANGE` judged rounds and one more that confirms it. It begins
again after a gap of tokens that grows with each trial that fails. A trial has the shape that was given up, since the
size of its own draft is mostly not what a target waits for. It gives little weight to what was learnt before, so that a
few rounds decide.

The monitor shows the reason of the present shape, one of those in `starsd_edge.protocol.codes`.

A reported time is limited to what the target's return times have room for. Beyond that a wrong report makes only the
target's own drafts worse, except that on an overloaded hub the target may keep its drafts for longer than it should.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from starsd_edge.planning.acceptance import AcceptanceEstimator
from starsd_edge.planning.hub_share import NOTHING, DraftDemand, ShapeChoice, share_hub
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.protocol.codes import FIRST, FIXED, NOT_PAYING, TRIAL
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


FIRST_ACCEPTANCE = 0.6
"""Acceptance rate expected of the likeliest child, from 0 to 1, before any round of a target was judged. Speculation
begins where it would pay at this rate.
"""
ROUNDS_PER_CHANGE = 8
"""Judged rounds between two changes of the depth, and before the first choice that is learnt from rounds."""
STEADY_ROUNDS = 4
"""Judged rounds for which choices must stay larger, or smaller, than the present shape before it changes."""
_STEADY_ROUNDS = {NOT_PAYING: 1}
"""Reasons for which fewer than `STEADY_ROUNDS` rounds are enough. Where drafts do not pay each further round is a loss,
so one round that confirms it suffices.
"""
FIRST_GAP_TOKENS = 32
"""Tokens without drafts before the first trial of speculation that did not pay; doubled with each trial that fails."""
MOST_GAP_TOKENS = 1024
"""Most tokens without drafts between two trials."""
_FIRST_TRIAL = DraftShape(4, 2, 2)
"""Shape of a trial where nothing was drafted before."""
_RECENT = 9
"""Rounds whose return time, without the verify pass, is kept."""


class ShapeController:
    """The draft shape of one session over time: what is learnt from its rounds, and how slowly the shape changes. Pure:
    times and counts come from outside.

    Attributes:
        why: the reason of the present shape, one of those in `starsd_edge.protocol.codes`.
        gain: expected speed with the present shape as a multiple of plain decoding; 0 while unknown.
    """

    def __init__(self) -> None:
        self.acceptance = AcceptanceEstimator(first=FIRST_ACCEPTANCE, follows_changes=False)
        self.why = FIRST
        self.gain = 0.0
        self._shape: DraftShape | None = None
        self._learns = True
        self._tried = _FIRST_TRIAL
        self._since_change = 0
        self._same_side = 0
        self._side = 0
        self._gap_tokens = FIRST_GAP_TOKENS
        self._off_tokens: int | None = None
        self._rest_s: deque[float] = deque(maxlen=_RECENT)

    def successor(self) -> ShapeController:
        """A controller for the next session of the same target, with all that this one has learnt."""
        return deepcopy(self)

    def judged(self, steps: Sequence[PathStep]) -> None:
        """A round whose draft offered something became known; see `AcceptanceEstimator.learn`."""
        self.acceptance.learn(steps)
        self._since_change += 1
        if self._side:
            self._same_side += 1

    def returned(self, seconds: float, verify_s: float) -> None:
        """Take in Z of a round, and the seconds of it that the verify pass is taken to have had."""
        self._rest_s.append(max(0.0, seconds - verify_s))

    def progressed(self, tokens: int) -> None:
        """The sequence has grown by this many tokens since the last request."""
        if self._off_tokens is not None:
            self._off_tokens += tokens
            if self._off_tokens >= self._gap_tokens:
                self._begin_trial()

    def demand(self, verify: VerifyCurve, plain_s: float, limit: DraftShape) -> DraftDemand | None:
        """This session as `share_hub` sees it; None while its return time is not known, or while it drafts nothing."""
        if not self._rest_s or self._off_tokens is not None:
            return None
        # Not the median: a target that decoded on before its draft came returns later for no reason of link or draft.
        rest_s = sorted(self._rest_s)[len(self._rest_s) // 4]
        return DraftDemand(self.acceptance.rates, verify, rest_s, plain_s, limit)

    def choose(self, choice: ShapeChoice) -> None:
        """Take in the newest choice. The shape follows it as the module's docstring says under 2; a session that
        drafts nothing stays so until its gap ends.
        """
        if self._off_tokens is not None:
            return
        if self._learns and self._since_change < ROUNDS_PER_CHANGE:
            self._shape = choice.shape if choice.shape.max_depth else None
            return
        self.gain = choice.gain
        if self._learns or self._shape is None:
            self._learns = False
            self._move_to(choice.shape, choice)
            return
        side = _sign(choice.shape.max_depth - self._shape.max_depth)
        if side != self._side:
            self._side, self._same_side = side, 0
        steady_rounds = _STEADY_ROUNDS.get(choice.why, STEADY_ROUNDS)
        if side == 0:
            self._settle(choice)
        elif self._since_change >= ROUNDS_PER_CHANGE and self._same_side >= steady_rounds:
            self._step(choice, side)

    def shape(self, asked: DraftShape) -> DraftShape:
        """The shape to draft where `asked` was asked for."""
        if self._off_tokens is not None:
            return NOTHING
        return asked if self._shape is None else self._shape.within(asked)

    @property
    def present(self) -> DraftShape | None:
        """The present shape; None while drafts are as large as the target asks for."""
        return NOTHING if self._off_tokens is not None else self._shape

    def _step(self, choice: ShapeChoice, side: int) -> None:
        assert self._shape is not None  # noqa: S101 (only who still learns has none)
        if choice.shape.max_depth == 0:
            self._move_to(NOTHING, choice)
            return
        depth = self._shape.max_depth + side
        if depth == choice.shape.max_depth:
            self._move_to(choice.shape, choice)
        else:
            nodes = depth if choice.shape.branching == 1 else max(depth, choice.shape.max_nodes)
            self._move_to(DraftShape(nodes, depth, choice.shape.branching), choice)

    def _settle(self, choice: ShapeChoice) -> None:
        """The depth is the chosen one: take the chosen number of nodes. A trial that has lasted until now has paid."""
        self._shape = choice.shape
        if self.why != TRIAL or self._since_change >= ROUNDS_PER_CHANGE:
            self.why = choice.why
            self._gap_tokens = FIRST_GAP_TOKENS

    def _move_to(self, shape: DraftShape, choice: ShapeChoice) -> None:
        if shape.max_depth == 0:
            self._turn_off(choice)
        else:
            self._gap_tokens = FIRST_GAP_TOKENS
        self._shape = shape
        self.why = choice.why
        self._since_change = self._same_side = self._side = 0

    def _turn_off(self, choice: ShapeChoice) -> None:
        """Draft nothing. After a trial that did not pay the next gap is twice as long; not where the load of others is
        the reason.
        """
        self._off_tokens = 0
        if self._shape is not None and self._shape.max_depth:
            self._tried = self._shape
        if self.why == TRIAL and choice.why == NOT_PAYING:
            self._gap_tokens = min(2 * self._gap_tokens, MOST_GAP_TOKENS)

    def _begin_trial(self) -> None:
        if self.why == NOT_PAYING:
            self.acceptance.doubt()
        self._off_tokens = None
        self._shape = self._tried
        self.why = TRIAL
        self._since_change = self._same_side = self._side = 0


@dataclass(frozen=True)
class SessionDemand:
    """What a session would gain from drafts of each size, and the drafter that serves it."""

    session: int
    drafter: str
    demand: DraftDemand


@dataclass
class _Session:
    """State of one session.

    Attributes:
        limit: the largest shape that it has asked for.
        base_len: `base_len` of its last request.
        nodes: nodes of its last draft.
        sharing: answers that the target runs by turns, this one included: its sessions that asked since this one did.
        held_to: factor on the times that the target reports, at most 1, so that they fit into its last return time.
    """

    controller: ShapeController
    connection: HubConnection
    limit: DraftShape
    base_len: int
    asked_at: float
    nodes: int = 0
    sharing: int = 1
    held_to: float = 1.0

    @property
    def curve(self) -> VerifyCurve | None:
        """Seconds of the target's work from one round of the session to the next, by the rows of a round: one of each
        answer that it runs by turns. None is longer than its return times: otherwise it would look like no load.
        """
        told = curve_of(self.connection.report)
        return None if told is None else told.scaled(self.held_to * self.sharing)


@dataclass
class ShapeControllers:
    """The controllers of all sessions. All methods belong to the event loop.

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
    _beside: WeakKeyDictionary[HubConnection, dict[int, _Session]] = field(default_factory=WeakKeyDictionary)
    """For each target, its sessions that have asked."""

    def judged(self, session: int, steps: Sequence[PathStep]) -> None:
        """It became known what was accepted of the last draft of a session; see `AcceptanceEstimator.learn`."""
        known = self._sessions.get(session)
        if known is not None:
            known.controller.judged(steps)

    def choose(self, session: int, connection: HubConnection, base_len: int, asked: DraftShape) -> DraftShape:
        """The shape for a request under the root at `base_len`, within what the target asked for. One without nodes or
        levels lets it go on without a draft.
        """
        if self.fixed is not None:
            return self.fixed.within(asked)
        now = self.clock()
        known = self._sessions.get(session)
        if known is None:
            before = self._last.get(connection)
            controller = ShapeController() if before is None else before.successor()
            known = self._sessions[session] = _Session(controller, connection, asked, base_len, now)
        known.controller.progressed(max(0, base_len - known.base_len))
        beside = self._beside.setdefault(connection, {})
        known.sharing = 1 + sum(each.asked_at > known.asked_at for each in beside.values() if each is not known)
        beside[session] = known
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
            own_s = known.sharing * told.at(known.nodes + 1)
            known.held_to = min(1.0, max(seconds, LEAST_RETURN_S) / own_s)
            known.controller.returned(seconds, known.held_to * own_s)

    def left(self, session: int) -> None:
        """The session's target is away: until it asks again, it counts as no load."""
        known = self._sessions.get(session)
        if known is not None:
            known.asked_at = -math.inf

    def forget(self, session: int) -> None:
        """The session is gone."""
        known = self._sessions.pop(session, None)
        if known is not None:
            self._beside.get(known.connection, {}).pop(session, None)

    def demands(self) -> list[SessionDemand]:
        """Sessions that are active and of which enough is known, as the choice of draft shapes sees them."""
        now = self.clock()
        found = []
        for session, known in self._sessions.items():
            terms, curve = known.connection.terms, known.curve
            if terms is None or curve is None or now - known.asked_at > ACTIVE_S:
                continue
            demand = known.controller.demand(curve, curve.at(1), known.limit.clamp(MOST_NODES, MOST_NODES))
            if demand is not None:
                found.append(SessionDemand(session, terms.drafter, demand))
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


def share(demands: Sequence[SessionDemand], costs: Mapping[str, ServiceCost], max_batch: int) -> dict[int, ShapeChoice]:
    """The draft shape of each session. Pure, so it may run on any thread.

    All drafters share one thread, but the time of each drafter is divided only among its own sessions. Where several
    drafters are busy, each is treated as if it were alone; the load of the others shows as longer return times.
    """
    choices: dict[int, ShapeChoice] = {}
    for drafter, cost in costs.items():
        of_it = [each for each in demands if each.drafter == drafter]
        if of_it:
            shared = share_hub([each.demand for each in of_it], cost, max_batch)
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


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
