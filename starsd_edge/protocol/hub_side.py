"""The hub's end of the wire as a state machine: frames and results in, actions out.

One `HubProtocol` per hub holds the table of sessions; one `HubConnection` per WebSocket. Nothing here waits, sleeps
or touches a socket: the front door hands in frames with the time of their arrival and carries out the actions; the
drafting thread's results come back through `answer`. Not thread-safe: everything is called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from starsd_edge.protocol.codes import DRAFTER_FAILED
from starsd_edge.protocol.counters import DraftRecord, WireCounters
from starsd_edge.protocol.hub_actions import (
    AddRows,
    AnswerProbe,
    Away,
    Back,
    DropSession,
    HangUp,
    HubAction,
    HubLimits,
    Offer,
    OpenSession,
    OwnPort,
    QueueDraft,
    Refusal,
    Send,
    SendOn,
    SessionView,
)
from starsd_edge.protocol.hub_connection import HubConnection, HubState
from starsd_edge.protocol.hub_sessions import SessionTable
from starsd_edge.protocol.hub_shapes import AsAsked, ShapeChooser
from starsd_edge.protocol.messages import Draft, Error, Hello, Ready
from starsd_edge.speculation.tree import DraftTree

__all__ = [
    "AddRows",
    "AnswerProbe",
    "Away",
    "Back",
    "DropSession",
    "HangUp",
    "HubAction",
    "HubConnection",
    "HubLimits",
    "HubProtocol",
    "Offer",
    "OpenSession",
    "OwnPort",
    "QueueDraft",
    "Refusal",
    "Send",
    "SendOn",
    "SessionView",
]


class HubProtocol:
    """The sessions of one hub and the rules of the conversation."""

    def __init__(
        self,
        hub_id: str,
        offer: Callable[[Hello], Offer | Refusal],
        limits: HubLimits,
        new_tag: Callable[[], bytes],
        own_port: Callable[[str], OwnPort | Refusal] | None = None,
        waiting_bytes: Callable[[str], int] = lambda owner: 0,
        shapes: ShapeChooser | None = None,
    ) -> None:
        """Args:
        hub_id: instance id, new at every start.
        offer: chooses a drafter for a HELLO.
        new_tag: 128 secret random bits.
        own_port: finds a port of its own for a target with this key; None: all targets stay where they come in.
        waiting_bytes: memory of the features that were fed for this key and that no drafter has taken yet.
        shapes: decides how large drafts are; None: as targets ask.
        """
        self._state = HubState(
            hub_id, offer, limits, SessionTable(new_tag), own_port, waiting_bytes, shapes or AsAsked()
        )

    @property
    def counters(self) -> WireCounters:
        """What crossed the wire, all connections together."""
        return self._state.counters

    def connect(self, owner: str, at_own_port: bool = False) -> HubConnection:
        """A connection whose authenticated key is `owner`, here or at the port that its target was sent to."""
        return HubConnection(self._state, owner, at_own_port)

    @property
    def record(self) -> DraftRecord:
        """What became of all drafts."""
        return self._state.record

    def connection_of(self, session: int) -> HubConnection | None:
        """Where the drafts of this session go; None when it is gone or its target away."""
        held = self._state.table.by_key(session)
        return None if held is None else held.connection

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
        if held.connection is None:
            return []
        for record in (held.connection.record, self._state.record):
            record.drafted(len(tree), queue_us)
        return [held.connection.send(draft)]

    def failed(self, session: int, epoch: int, message: str) -> list[HubAction]:
        """The drafter could not draft for this session: ERROR(scope = session) and the session ends; the others go
        on.
        """
        held = self._state.table.by_key(session)
        if held is None:
            return []
        connection = held.connection
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
        return [
            connection.send(Ready(drafter))
            for connection in self._state.connections
            if connection.terms is not None and connection.terms.drafter == drafter
        ]

    def broken(self, drafter: str, why: str) -> list[HubAction]:
        """A drafter turned out to draft for nobody: its sessions end, and every connection that was offered it, so that
        its target asks again and is offered another.
        """
        actions: list[HubAction] = [self._state.table.remove(held) for held in self._state.table.of_drafter(drafter)]
        for connection in list(self._state.connections):
            if connection.terms is not None and connection.terms.drafter == drafter:
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
