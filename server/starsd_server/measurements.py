"""Measured costs and sizes of passes, and the latencies of sessions and targets. All of it belongs to the event loop,
so that the drafting thread loses no time with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starsd_edge.protocol.hub_side import HubConnection, QueueDraft
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.hub_facts import BatchFacts, ServiceFacts
from starsd_edge.telemetry.latency import Latency
from starsd_edge.telemetry.service_model import ServiceCost, ServiceModel, size_of
from starsd_server.draft_queue import ROWS_OF_A_ROUND, Absorb, Batch
from starsd_server.drafter_pool import Done

KNOWN_AFTER = 8
"""Passes after which the cost model of a drafter rests on enough measurements to be used."""


class PassRecord:
    """Attributes:
    models: S(b, shape) as measured, by drafter.
    unused_s: time in drafters for sessions whose target had left by the end of it.
    """

    def __init__(self, drafters: Iterable[str], max_batch: int) -> None:
        self.models = {drafter: ServiceModel() for drafter in drafters}
        self._sizes = [0] * max_batch
        self._last = 0
        self.unused_s = 0.0

    def take_in(self, done: Done) -> None:
        """Work was done."""
        work, model = done.work, self.models.get(done.drafter)
        if model is None:
            return
        if isinstance(work, Batch):
            self._last = len(work.answers)
            self._sizes[self._last - 1] += 1
            rows = [len(answer.rows.ids) for answer in work.answers if answer.rows is not None]
            if done.is_clean and max(rows, default=0) <= ROWS_OF_A_ROUND:
                model.observe(size_of([answer.request.shape for answer in work.answers]), done.service_s)
        elif isinstance(work, Absorb) and done.is_clean:
            model.observe_rows(len(work.rows.ids), done.service_s)

    def note_unused(self, done: Done, is_here: Callable[[int], bool]) -> None:
        """Count the time of finished work whose session's target has left; each session of a batch has an equal share.

        Args:
            is_here: whether a session's target is connected.
        """
        work = done.work
        if isinstance(work, Batch):
            sessions = [answer.request.session for answer in work.answers]
        else:
            sessions = [work.rows.session] if isinstance(work, Absorb) else []
        gone = sum(not is_here(session) for session in sessions)
        self.unused_s += done.service_s * gone / max(1, len(sessions))

    def predict(self, drafter: str, shape: DraftShape) -> float:
        """Expected seconds of a pass of this drafter for one request."""
        return self.models[drafter].cost.predict(size_of([shape]))

    def known_costs(self) -> dict[str, ServiceCost]:
        """Cost models of the drafters that have made at least `KNOWN_AFTER` passes."""
        return {kind: model.cost for kind, model in self.models.items() if model.passes >= KNOWN_AFTER}

    def batches(self) -> BatchFacts:
        """Sizes of the batches so far."""
        return BatchFacts(self._last, len(self._sizes), list(self._sizes))

    def service(self, drafter: str) -> ServiceFacts:
        """The cost model of a drafter as data."""
        model = self.models[drafter]
        cost = model.cost
        if not model.passes:
            return ServiceFacts()
        parts = (cost.fixed_s, cost.per_session_s, cost.per_level_s, cost.per_node_s, model.row_s)
        return ServiceFacts(model.passes, *(round(1e3 * part, 4) for part in parts))


class Latencies:
    """The observed latencies of each session and of each target of one hub."""

    def __init__(self) -> None:
        self._sessions: dict[int, Latency] = {}
        self._targets: dict[HubConnection, Latency] = {}
        self._target_of: dict[int, HubConnection] = {}

    def of_target(self, connection: HubConnection) -> Latency:
        """The rounds of all sessions at a connection."""
        return self._targets.setdefault(connection, Latency())

    def of_session(self, session: int) -> Latency:
        """The rounds of a session."""
        return self._sessions.setdefault(session, Latency())

    def observe(self, request: QueueDraft, connection: HubConnection) -> None:
        """A request came in at this connection."""
        self._target_of[request.session] = connection
        if request.returned_s is not None:
            for latency in (self.of_session(request.session), self.of_target(connection)):
                latency.returned(request.returned_s, request.target_s)

    def expected_return_s(self, session: int) -> float | None:
        """Expected return time in seconds: that of the session's own rounds, or, before there are any, that of other
        sessions of its target.
        """
        own = self._sessions.get(session)
        if own is not None and own.returns.samples:
            return own.returns.smoothed_s
        connection = self._target_of.get(session)
        target = None if connection is None else self._targets.get(connection)
        return target.returns.smoothed_s if target is not None and target.returns.samples else None

    def forget_session(self, session: int) -> None:
        """Drop the latency of a session that is gone."""
        self._sessions.pop(session, None)
        self._target_of.pop(session, None)

    def forget_target(self, connection: HubConnection) -> None:
        """Drop the latency of a target that has left; its sessions may come back at another connection."""
        self._targets.pop(connection, None)
