"""What was observed of the rounds of each session and of each target. All of it belongs to the event loop."""

from __future__ import annotations

from starsd_edge.protocol.hub_side import HubConnection, QueueDraft
from starsd_edge.telemetry.latency import Latency


class Latencies:
    """The latencies of one hub."""

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
        """That of the session's own rounds; before there are any, that of other sessions of its target."""
        own = self._sessions.get(session)
        if own is not None and own.returns.samples:
            return own.returns.smoothed_s
        connection = self._target_of.get(session)
        target = None if connection is None else self._targets.get(connection)
        return target.returns.smoothed_s if target is not None and target.returns.samples else None

    def forget_session(self, session: int) -> None:
        """It is gone."""
        self._sessions.pop(session, None)
        self._target_of.pop(session, None)

    def forget_target(self, connection: HubConnection) -> None:
        """It has left; its sessions may come back at another connection."""
        self._targets.pop(connection, None)
