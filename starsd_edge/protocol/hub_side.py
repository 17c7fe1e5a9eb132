"""The hub's end of the wire as a state machine: frames and results in, actions out.

One `HubProtocol` per hub holds the table of sessions; one `HubConnection` per WebSocket. Nothing here waits, sleeps
or touches a socket: the front door hands in frames with the time of their arrival and carries out the actions; the
drafting thread's results come back through `answer`. Not thread-safe: everything is called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from starsd_edge.protocol.codes import DRAFTER_FAILED
from starsd_edge.protocol.counters import DraftRecord, WireCounters
from starsd_edge.protocol.hub_actions import (
    AddRows,
    AnswerProbe,
    Away,
    Back,
    DraftJudged,
    DropSession,
    FindPort,
    HangUp,
    HubAction,
    HubLimits,
    MessageRefused,
    Notice,
    Offer,
    OpenSession,
    OwnPort,
    QueueDraft,
    Refusal,
    ReportReceived,
    Send,
    SendOn,
    SessionResumed,
    SessionView,
    TargetJoined,
)
from starsd_edge.protocol.hub_connection import HubConnection, HubState
from starsd_edge.protocol.hub_sessions import HubSession, SessionTable
from starsd_edge.protocol.messages import Draft, Error, Hello, Ready
from starsd_edge.speculation.tree import DraftShape, DraftTree

__all__ = [
    "AddRows",
    "AnswerProbe",
    "Away",
    "Back",
    "DraftJudged",
    "DropSession",
    "FindPort",
    "HangUp",
    "HubAction",
    "HubConnection",
    "HubLimits",
    "HubProtocol",
    "MessageRefused",
    "Notice",
    "Offer",
    "OpenSession",
    "OwnPort",
    "QueueDraft",
    "Refusal",
    "ReportReceived",
    "Send",
    "SendOn",
    "SessionResumed",
    "SessionView",
    "TargetJoined",
]


class HubProtocol:
    """The sessions of one hub and the rules of the conversation."""

    def __init__(
        self,
        hub_id: str,
        offer: Callable[[Hello], Offer | Refusal],
        limits: HubLimits,
        new_tag: Callable[[], bytes],
        has_own_ports: bool = False,
    ) -> None:
        """Args:
        hub_id: instance id, new at every start.
        offer: chooses a drafter for a HELLO.
        new_tag: 128 secret random bits.
        has_own_ports: targets that know of it are sent on to ports of their own.
        """
        self._state = HubState(hub_id, offer, limits, SessionTable(new_tag), has_own_ports)
        self._last_number = 0

    @property
    def counters(self) -> WireCounters:
        """What crossed the wire, all connections together."""
        return self._state.counters

    def connect(self, owner: str, at_own_port: bool = False) -> HubConnection:
        """A connection whose authenticated key is `owner`, here or at the port that its target was sent to."""
        self._last_number += 1
        connection = HubConnection(self._state, self._last_number, owner, at_own_port)
        self._state.connections[connection.number] = connection
        return connection

    @property
    def record(self) -> DraftRecord:
        """What became of all drafts."""
        return self._state.record

    def connection_of(self, session: int) -> HubConnection | None:
        """Where the drafts of this session go; None when it is gone or its target away."""
        held = self._state.table.by_key(session)
        return None if held is None else self._connection_of(held)

    def answer_probe(self, probe: AnswerProbe, now: float, is_behind: bool) -> list[HubAction]:
        """See `HubConnection.answer_probe`; nothing where the connection is gone."""
        connection = self._state.connections.get(probe.connection)
        return [] if connection is None else connection.answer_probe(probe, now, is_behind)

    def send_on(self, wanted: FindPort, place: OwnPort | Refusal) -> list[HubAction]:
        """See `HubConnection.send_on`; nothing where the connection is gone."""
        connection = self._state.connections.get(wanted.connection)
        return [] if connection is None else connection.send_on(wanted.welcome, place)

    def narrow(self, queued: QueueDraft, shape: DraftShape) -> QueueDraft:
        """This request, which was just handed out, with the smaller shape that the hub has chosen: to that its draft
        will be cut.
        """
        if shape == queued.shape:
            return queued
        held = self._state.table.by_key(queued.session)
        if held is not None:
            held.narrow_request(queued.epoch, shape)
        return replace(queued, shape=shape)

    def turn_down(self, queued: QueueDraft) -> list[HubAction]:
        """No drafter is to be asked for this request, which was just handed out: an empty DRAFT."""
        held = self._state.table.by_key(queued.session)
        connection = None if held is None else self._connection_of(held)
        if held is None or connection is None or held.epoch != queued.epoch:
            return []
        return [connection.send(held.turn_down(queued.epoch, queued.base_len))]

    def sessions(self) -> list[SessionView]:
        """All sessions for the monitor, oldest first."""
        return self._state.table.views()

    def answer(
        self, session: int, epoch: int, base_len: int, tree: DraftTree, queue_us: int, service_us: int, now: float
    ) -> list[HubAction]:
        """A tree from the drafting thread: a DRAFT on the session's present connection, nothing when the session is
        gone or its connection away.

        The DRAFT of the newest request is kept, for a target that asks for it again after a resume.
        """
        held = self._state.table.by_key(session)
        pending = held.settle_request(epoch, base_len) if held is not None else None
        if held is None or pending is None:
            self._state.counters.dropped["late_draft"] += 1
            return []
        shape = pending.shape
        tree = tree.of_vocabulary(held.terms.vocab_size).clip(shape.max_nodes, shape.max_depth, shape.branching)
        draft = Draft(
            tag=held.tag,
            epoch=epoch,
            base_len=base_len,
            ids=tree.tokens.tolist(),
            parents=tree.parents.tolist(),
            queue_us=queue_us,
            service_us=service_us,
            hub_us=max(0, round((now - pending.received_at) * 1e6)),
        )
        if epoch == held.epoch:
            held.answered = draft
            held.drafted(now)
        connection = self._connection_of(held)
        if connection is None:
            return []
        for record in (connection.record, self._state.record):
            record.drafted(len(tree), queue_us)
        return [connection.send(draft)]

    def failed(self, session: int, epoch: int, message: str) -> list[HubAction]:
        """The drafter could not draft for this session: ERROR(scope = session) and the session ends; the others go
        on.
        """
        held = self._state.table.by_key(session)
        if held is None:
            return []
        connection = self._connection_of(held)
        actions: list[HubAction] = [self._state.table.remove(held)]
        if connection is not None:
            actions.append(connection.send(Error(DRAFTER_FAILED, message[:1024], "session", held.tag, epoch)))
        return actions

    def ready(self, drafter: str) -> list[HubAction]:
        """A drafter became warm: READY to every welcomed connection that was offered it (and to later ones right
        after WELCOME).
        """
        if drafter in self._state.warm:
            return []
        self._state.warm.add(drafter)
        return [connection.send(Ready(drafter)) for connection in self._welcomed(drafter)]

    def broken(self, drafter: str, why: str) -> list[HubAction]:
        """A drafter turned out to draft for nobody: its sessions end, and every connection that was offered it, so that
        its target asks again and is offered another.
        """
        actions: list[HubAction] = [self._state.table.remove(held) for held in self._state.table.of_drafter(drafter)]
        for connection in self._welcomed(drafter):
            actions += connection.give_up(DRAFTER_FAILED, f"the {drafter} drafter is out of use: {why}")
        return actions

    def expire(self, now: float) -> list[HubAction]:
        """Drop the sessions whose connection has been away for longer than the resume grace."""
        actions: list[HubAction] = []
        away = self._state.table.longest_away()
        while away is not None and now - away.away_since > self._state.limits.resume_grace_s:
            actions.append(self._state.table.remove(away))
            away = self._state.table.longest_away()
        return actions

    def _connection_of(self, session: HubSession) -> HubConnection | None:
        return None if session.connection is None else self._state.connections[session.connection]

    def _welcomed(self, drafter: str) -> list[HubConnection]:
        """Connections that were offered this drafter and that are not given up."""
        return [
            connection
            for connection in self._state.connections.values()
            if connection.is_welcomed and connection.terms is not None and connection.terms.drafter == drafter
        ]
