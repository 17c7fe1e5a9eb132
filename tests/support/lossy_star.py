"""One target and one hub over a network that loses, repeats and delays frames, and a drafter that checks what it is
fed.

Frames of one connection keep their order, as a WebSocket does, but may be lost or come twice, which it does not; an
old connection lingers at the hub after the target has left it, with frames on their way that arrive much later. A hub
may send the target on to one of a few ports, where its ticket may come too late.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from starsd_edge.protocol.codec import decode_from_hub
from starsd_edge.protocol.codes import BUSY
from starsd_edge.protocol.hub_side import (
    AddRows,
    AnswerProbe,
    DropSession,
    FindPort,
    HangUp,
    HubAction,
    HubConnection,
    HubLimits,
    HubProtocol,
    Offer,
    OpenSession,
    OwnPort,
    QueueDraft,
    Refusal,
    Send,
    SendOn,
)
from starsd_edge.protocol.messages import Error, Report
from starsd_edge.protocol.target_side import (
    DraftArrived,
    Refused,
    SentOn,
    TargetEvent,
    TargetProtocol,
    TargetSession,
)
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.dedicated_ports import PortLeases
from tests.support.wire import VOCAB, WIDTH, a_hello, promised

CONTEXT = 160
MAX_TREE = 10
MAX_DEPTH = 4
PROMPT = 9
"""Tokens that a sequence begins with, whether or not their rows are there yet."""
PORTS = range(9000, 9003)


def true_token(session: int, row: int) -> int:
    """The token of a row: every session has a text of its own."""
    return (session * 131 + row * row * 7 + row) % VOCAB


def true_features(session: int, start: int, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float16]]:
    """The features of these rows."""
    values = np.arange(start, start + rows)[:, None] + session * 100 + np.arange(WIDTH) / 8
    return values.astype(np.float16)


@dataclass
class Wire:
    """A connection with the frames on their way."""

    hub_end: HubConnection
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    cut: bool = False
    """The target has left it."""
    hung_up: bool = False
    port: int | None = None
    """The target's own."""


@dataclass
class Fed:
    """What the drafter holds of a sequence: its rows up to this one."""

    number: int
    rows: int

    @classmethod
    def opened(cls, opening: OpenSession) -> Fed:
        """Which sequence begins so: their tokens differ at every position."""
        first = opening.first_row
        starts = (number for number in range(VOCAB) if opening.t_first == true_token(number, first - 1))
        return cls(next(starts) if first else opening.t_first, first)


class LossyStar:
    """The network between a `TargetProtocol` and a `HubProtocol`."""

    def __init__(self, codec: str, dedicated: bool = False, window: int | None = None) -> None:
        self.now = 1000.0
        self.codec = codec
        self.dedicated = dedicated
        self.target = TargetProtocol(
            a_hello(codecs=["f2", "i1"], max_tree=MAX_TREE, max_depth=MAX_DEPTH, max_context=CONTEXT, dedicated=True),
            lambda: self.now,
            window,
        )
        self.window = window
        self.sessions: dict[int, TargetSession] = {}
        self.next_session = 0
        self.wires: list[Wire] = []
        self.wire: Wire | None = None
        self.hubs = 0
        self.tags = 0
        self.tickets = 0
        self.late = False
        self.met: Counter[str] = Counter()
        self.arrived: list[DraftArrived] = []
        self.start_hub()

    def start_hub(self) -> None:
        """A new hub instance; all that the last one held is gone."""
        self.hubs += 1
        self.leases = PortLeases(PORTS, self._new_ticket, lambda: self.now)
        self.hub = HubProtocol(
            f"hub-{self.hubs}",
            lambda _: Offer("eagle", "fp", self.codec),
            HubLimits(max_sessions=6),
            self._new_tag,
            self.dedicated,
        )
        self.fed: dict[int, Fed] = {}
        self.queued: list[QueueDraft] = []
        self.cut()
        self.wires = []

    def _new_tag(self) -> bytes:
        self.tags += 1
        return self.tags.to_bytes(16, "big")

    def _new_ticket(self) -> str:
        self.tickets += 1
        return f"ticket-{self.tickets}"

    def _own_port(self, owner: str) -> OwnPort | Refusal:
        port = next(self.leases.free(), None)
        if port is None:
            self.met["exhausted"] += 1
            return Refusal(BUSY, "every port is taken", 5000)
        return OwnPort(port, self.leases.lease(port, owner))

    def connect(self) -> None:
        """The target connects; its old connection may linger at the hub."""
        self.cut()
        self.wire = Wire(self.hub.connect("alice"))
        self.wires.append(self.wire)
        self.target.connected()

    def go_on(self, place: SentOn) -> None:
        """The target leaves for its own port, and is let in there if its ticket is still good."""
        self.cut()
        if self.late:
            self.late = False
            self.wait(6)
        let_in = self.leases.redeem(place.port, "alice", place.ticket)
        self.met["let in" if let_in else "not let in"] += 1
        assert not self.leases.redeem(place.port, "alice", place.ticket)
        if let_in:
            self.wire = Wire(self.hub.connect("alice", at_own_port=True), port=place.port)
            self.wires.append(self.wire)
            self.target.connected(at_own_port=True)

    def cut(self) -> None:
        """The target loses its connection; what it sent may still arrive."""
        if self.wire is not None:
            self.collect()
            self.wire.cut = True
            self.wire = None
            self.target.disconnected()

    def notice(self, wire: Wire) -> None:
        """The hub notices that a connection is gone."""
        self.wires.remove(wire)
        if wire.port is not None:
            self.leases.give_back(wire.port)
        self.act(wire.hub_end.lost(self.now))

    def collect(self) -> None:
        """The target's frames go on their way."""
        frames = self.target.frames()
        if self.wire is not None:
            self.wire.up += frames
        else:
            assert frames == []

    def arrive_up(self, wire: Wire) -> None:
        """The next frame of a connection reaches the hub."""
        self.act(wire.hub_end.receive(wire.up.popleft(), self.now, 0))

    def arrive_down(self, wire: Wire) -> None:
        """The next frame reaches the target, unless it has left that connection."""
        frame = wire.down.popleft()
        if not wire.cut:
            self.hear(self.target.receive(frame))
            self.collect()

    def act(self, actions: list[HubAction]) -> None:
        """What the hub's front door and drafting thread do; the drafter checks what it is fed."""
        for action in actions:
            if isinstance(action, Send):
                self.check_sent(action.frame)
                wire = next((wire for wire in self.wires if wire.hub_end.number == action.connection), None)
                assert wire is not None, "a frame for a connection that the hub knows to be gone"
                wire.down.append(action.frame)
            elif isinstance(action, OpenSession):
                assert action.session not in self.fed
                self.fed[action.session] = Fed.opened(action)
            elif isinstance(action, AddRows):
                fed = self.fed[action.rows.session]
                rows = len(action.rows.ids)
                assert action.rows.first_row == fed.rows
                assert list(action.rows.ids) == [true_token(fed.number, fed.rows + row) for row in range(rows)]
                if self.codec == "none":
                    assert action.rows.features is None
                else:
                    assert action.rows.features is not None
                    sent = promised(true_features(fed.number, fed.rows, rows), self.codec)
                    assert np.array_equal(action.rows.features, sent)
                fed.rows += rows
            elif isinstance(action, QueueDraft):
                assert action.base_len == self.fed[action.session].rows
                assert 1 <= action.shape.max_nodes <= MAX_TREE - 1
                assert 1 <= action.shape.max_depth <= min(MAX_DEPTH, CONTEXT - action.base_len - 1)
                self.queued = [queued for queued in self.queued if queued.session != action.session] + [action]
            elif isinstance(action, DropSession):
                del self.fed[action.session]
                self.queued = [queued for queued in self.queued if queued.session != action.session]
            elif isinstance(action, AnswerProbe):
                self.act(self.hub.answer_probe(action, self.now, is_behind=False))
            elif isinstance(action, FindPort):
                self.act(self.hub.send_on(action, self._own_port(action.owner)))
            elif isinstance(action, HangUp | SendOn):
                next(wire for wire in self.wires if wire.hub_end.number == action.connection).hung_up = True

    def check_sent(self, frame: bytes) -> None:
        """An honest target is never told that its rows or frames are wrong."""
        message = decode_from_hub(frame)
        if isinstance(message, Error):
            assert message.code not in {"malformed", "row_conflict", "context_full"}, message

    def hear(self, events: list[TargetEvent]) -> None:
        """What the target's link does with events; drafts are checked and kept."""
        for event in events:
            if isinstance(event, DraftArrived):
                assert 0 <= event.base_len <= event.session.rows
                assert len(event.tree) <= MAX_TREE - 1
                assert event.tree.depth <= min(MAX_DEPTH, CONTEXT - event.base_len - 1)
                assert all(0 <= token < VOCAB for token in event.tree.tokens.tolist())
                assert event.session in self.sessions.values()
                self.arrived.append(event)
            elif isinstance(event, Refused):
                assert not event.final
            elif isinstance(event, SentOn):
                self.go_on(event)

    def draft(self, index: int, tree: DraftTree) -> None:
        """The drafting thread finishes one of the queued requests."""
        queued = self.queued.pop(index % len(self.queued))
        self.act(self.hub.answer(queued.session, queued.epoch, queued.base_len, tree, 1, 2, self.now))

    def open(self) -> None:
        """The target begins a sequence."""
        number = self.next_session
        prompt = [number, *(true_token(number, row) for row in range(PROMPT - 1))]
        self.sessions[number] = self.target.open_session(prompt, "greedy")
        self.next_session += 1
        self.collect()

    def append(self, number: int, rows: int) -> None:
        """The target's text goes on, as far as its context has room for a root."""
        session = self.sessions[number]
        start = session.rows
        rows = min(rows, CONTEXT - 1 - start)
        ids = [true_token(number, start + row) for row in range(rows)]
        session.append(ids, true_features(number, start, rows))

    def pick(self, which: int) -> int:
        """One of the target's sequences."""
        return list(self.sessions)[which % len(self.sessions)]

    def round(self, which: int, rows: int, shape: DraftShape, whole: bool, tree: DraftTree) -> None:
        """A sequence goes on and asks; the frames flow at once and are answered, or wait."""
        self.append(self.pick(which), rows)
        self.sessions[self.pick(which)].request(shape)
        self.collect()
        if whole and self.wire is not None:
            self.pump()
            if self.queued:
                self.draft(-1, tree)

    def prefill(self, which: int, rows: int) -> None:
        """A sequence goes on without asking."""
        self.append(self.pick(which), rows)
        self.sessions[self.pick(which)].extend()
        self.collect()

    def begin_or_end(self, which: int, most: int) -> None:
        """A new sequence, or the end of one where there are as many as may be."""
        if len(self.sessions) < most:
            self.open()
        else:
            self.target.close_session(self.sessions.pop(self.pick(which)))
            self.collect()

    def deliver_up(self, which: int, frames: int) -> None:
        """Some frames of one connection reach the hub."""
        waiting = [wire for wire in self.wires if wire.up]
        wire = waiting[which % len(waiting)]
        for _ in range(min(frames, len(wire.up))):
            self.arrive_up(wire)

    def deliver_down(self, which: int, frames: int) -> None:
        """Some frames of one connection reach the target."""
        waiting = [wire for wire in self.wires if wire.down]
        wire = waiting[which % len(waiting)]
        for _ in range(min(frames, len(wire.down))):
            self.arrive_down(wire)

    def spoil(self, upwards: bool, twice: bool) -> None:
        """The next frame is lost or comes twice."""
        if self.wire is None:
            return
        frames = self.wire.up if upwards else self.wire.down
        if frames and twice:
            frames.appendleft(frames[0])
        elif frames:
            frames.popleft()

    def reconnect(self, noticed: bool, late: bool) -> None:
        """The target connects anew; the hub learns of the loss at once, or long after. `late`: where it is sent on, it
        comes too late.
        """
        old = self.wire
        self.late = late
        self.connect()
        self.collect()
        if noticed and old is not None:
            self.notice(old)

    def mishap(self, kind: str, which: int) -> None:
        """What does not belong to a conversation: a cut, a noticed loss, a drafter that warms up or fails, a
        restart.
        """
        if kind == "restart":
            self.start_hub()
        elif kind == "warm":
            self.act(self.hub.ready("eagle"))
        elif kind == "fail" and self.fed:
            self.act(self.hub.failed(list(self.fed)[which % len(self.fed)], 1, "no memory"))
        elif kind == "notice" and self.wires:
            wire = self.wires[which % len(self.wires)]
            if wire is self.wire:
                self.cut()
            self.notice(wire)
        else:
            self.cut()

    def wait(self, seconds: float) -> None:
        """Time passes for both, and the target reports and probes."""
        self.now += seconds
        self.act(self.hub.expire(self.now))
        for port in self.leases.overdue():
            self.leases.give_back(port)
        self.target.report(Report(1, 1, 0, 2, 30, 0, 20, 5))
        self.target.probe(3, 4)
        self.collect()

    def pump(self) -> None:
        """Every frame of the present connection arrives, and of the one that it leads to."""
        self.collect()
        assert self.wire is not None
        while (wire := self.wire) is not None and (wire.up or wire.down):
            if wire.up:
                self.arrive_up(wire)
            else:
                self.arrive_down(wire)

    def settle(self) -> None:
        """The network is whole again: every sequence has the drafter's ear with all its rows, and nothing else is
        left.
        """
        self.mishap("warm", 0)
        while self.wires:
            self.mishap("notice", 0)
        self.late = False
        self.wait(700 if len(self.fed) % 2 else 6)
        self.connect()
        self.pump()
        for number, session in self.sessions.items():
            self.append(number, max(0, PROMPT - session.rows))  # the prefill is over
            session.extend()
        self.pump()
        self.arrived.clear()
        asked = {session: (session.request(DraftShape(5, 3, 2)), session.rows) for session in self.sessions.values()}
        self.pump()
        while self.queued:
            self.draft(0, DraftTree.chain([1]))
        self.pump()
        assert len(self.arrived) == len(asked)
        assert {event.session: (event.epoch, event.base_len) for event in self.arrived} == asked
        self.wait(31)
        held = {fed.number: fed.rows for fed in self.fed.values()}
        assert held == {number: session.rows for number, session in self.sessions.items()}

    def check(self) -> None:
        """The hub's rows are a prefix of the target's."""
        held = {view.session: view.rows for view in self.hub.sessions()}
        assert held == {key: fed.rows for key, fed in self.fed.items()}
        ports = [wire.port for wire in self.wires if wire.port is not None]
        assert len(ports) == len(set(ports)) <= len(self.leases) <= len(PORTS)
        for fed in self.fed.values():
            session = self.sessions.get(fed.number)
            assert session is None or fed.rows <= max(session.rows, PROMPT)
