"""Both ends of the wire for tests: a hub that is spoken to in messages, and a target whose hub the test plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codec import decode_from_hub, decode_from_target, encode
from starsd_edge.protocol.features import read_features, write_features
from starsd_edge.protocol.hub_side import (
    Away,
    Back,
    DraftJudged,
    FindPort,
    HubAction,
    HubConnection,
    HubLimits,
    HubProtocol,
    Notice,
    Offer,
    OwnPort,
    QueueDraft,
    Refusal,
    Send,
)
from starsd_edge.protocol.messages import Hello, HubMessage, Open, Opened, Ready, TargetMessage, Tensor, Welcome
from starsd_edge.protocol.target_side import SessionOpened, TargetEvent, TargetProtocol, TargetSession
from starsd_edge.speculation.tree import DraftTree
from starsd_server.draft_size import ShapeControllers

VOCAB = 1000
WIDTH = 8
CONTEXT = 4096
HUB_ID = "hub-1"

Kind = TypeVar("Kind")


def a_hello(**changes: object) -> Hello:
    """A HELLO of a target with float16 features."""
    fields: dict[str, object] = {
        "versions": [1],
        "target": "orin",
        "vocab_size": VOCAB,
        "tokenizer_fp": "tok",
        "source_fp": "src",
        "feature_fp": "feat",
        "feature_kind": "last_hidden",
        "feature_width": WIDTH,
        "codecs": ["f2"],
        "max_tree": 32,
        "max_depth": 8,
        "max_context": CONTEXT,
    }
    return Hello(**(fields | changes))  # type: ignore[arg-type]


def a_welcome(**changes: object) -> Welcome:
    """A WELCOME that wants no features."""
    fields: dict[str, object] = {
        "version": 1,
        "hub_id": HUB_ID,
        "drafter": "ngram",
        "drafter_fp": "fp",
        "feature_codec": "none",
        "heartbeat_s": 10.0,
        "max_sessions": 16,
        "max_nodes": 64,
        "max_depth": 16,
    }
    return Welcome(**(fields | changes))  # type: ignore[arg-type]


def some_features(rows: int, first: int = 0, width: int = WIDTH) -> npt.NDArray[np.float16]:
    """float16 [rows, width], different in every row."""
    return (np.arange(first, first + rows, dtype=np.float32)[:, None] + np.arange(width) / 16).astype(np.float16)


def a_tensor(values: npt.NDArray[np.float16], codec: str = "f2") -> Tensor:
    """Features as they travel."""
    return write_features(np.ascontiguousarray(values), codec)


def promised(values: npt.NDArray[np.float16], codec: str) -> npt.NDArray[np.float16]:
    """What a hub gets of these features."""
    read = read_features(a_tensor(values, codec), *values.shape, codec)
    assert read is not None
    return read


def only(kind: type[Kind], things: list[object] | list[HubMessage] | list[HubAction] | list[TargetEvent]) -> Kind:
    """The one of these things, which is of this kind."""
    assert len(things) == 1, things
    assert isinstance(things[0], kind), things
    return things[0]


class Peer:
    """One connection to the hub under test, spoken to in messages."""

    def __init__(self, hub: HubUnderTest, connection: HubConnection) -> None:
        self.hub = hub
        self.connection = connection

    def say(self, *messages: TargetMessage) -> list[HubMessage]:
        """Send these; the messages that came back on this connection. Other actions are kept in `hub.done`."""
        return [reply for message in messages for reply in self.say_frame(encode(message))]

    def say_frame(self, frame: bytes) -> list[HubMessage]:
        """The same with raw bytes."""
        waiting_bytes = self.hub.waiting.get(self.connection.owner, 0)
        return self.hub.carry_out(self.connection.receive(frame, self.hub.now, waiting_bytes), self.connection)

    def open(self, ref: int = 1, t_first: int = 7, first_row: int = 0) -> bytes:
        """A new session; its tag."""
        return only(Opened, self.say(Open(ref, first_row, t_first))).tag

    def lose(self) -> None:
        """The connection breaks."""
        self.hub.carry_out(self.connection.lost(self.hub.now), self.connection)


@dataclass
class HubUnderTest:
    """A hub with counted tags and a clock that the test moves."""

    codec: str = "none"
    limits: HubLimits = field(default_factory=HubLimits)
    choose: Callable[[Hello], Offer | Refusal] | None = None
    own_port: Callable[[str], OwnPort | Refusal] | None = None
    waiting: dict[str, int] = field(default_factory=dict)
    """Bytes of features that wait for the drafter, per key."""
    shapes: ShapeControllers | None = None
    """Chooses the shapes of drafts; None: they are as targets ask."""
    now: float = 100.0
    done: list[HubAction] = field(default_factory=list)
    """Actions other than Send and those in `moves` and `notices`, in order."""
    notices: list[Notice] = field(default_factory=list)
    moves: list[Away | Back] = field(default_factory=list)
    """Sessions that lost their connection or got one again."""

    def __post_init__(self) -> None:
        self._tags = 0
        choose = self.choose or (lambda _: Offer("ngram", "fp", self.codec))
        self.protocol = HubProtocol(HUB_ID, choose, self.limits, self._new_tag, self.own_port is not None)

    def _new_tag(self) -> bytes:
        self._tags += 1
        return self._tags.to_bytes(16, "big")

    def connect(self, owner: str = "alice", **hello: object) -> Peer:
        """A welcomed connection."""
        peer = self.connect_silently(owner)
        only(Welcome, [message for message in peer.say(a_hello(**hello)) if not isinstance(message, Ready)])
        return peer

    def connect_silently(self, owner: str = "alice", at_own_port: bool = False) -> Peer:
        """A connection on which nothing was said yet."""
        return Peer(self, self.protocol.connect(owner, at_own_port))

    def carry_out(self, actions: list[HubAction], connection: HubConnection) -> list[HubMessage]:
        """The messages sent on this connection; the rest goes to `done`."""
        sent: list[HubMessage] = []
        for action in actions:
            if isinstance(action, Send):
                sent += [decode_from_hub(action.frame)] if action.connection == connection.number else []
            elif isinstance(action, FindPort):
                assert self.own_port is not None
                sent += self.carry_out(self.protocol.send_on(action, self.own_port(action.owner)), connection)
            elif isinstance(action, Away | Back):
                self.moves.append(action)
            elif isinstance(action, Notice):
                self._note(action)
            elif isinstance(action, QueueDraft) and self.shapes is not None:
                sent += self._choose_shape(action, self.shapes, connection)
            else:
                self.done.append(action)
        return sent

    def _note(self, notice: Notice) -> None:
        self.notices.append(notice)
        if isinstance(notice, DraftJudged) and self.shapes is not None:
            self.shapes.judged(notice.session, notice.steps)

    def _choose_shape(self, asked: QueueDraft, shapes: ShapeControllers, connection: HubConnection) -> list[HubMessage]:
        asks = self.protocol.connection_of(asked.session)
        assert asks is not None
        shape = shapes.choose(asked.session, asks, asked.base_len, asked.shape)
        if shape.is_empty:
            return self.carry_out(self.protocol.turn_down(asked), connection)
        self.done.append(self.protocol.narrow(asked, shape))
        return []

    def take_done(self, kind: type[Kind]) -> Kind:
        """The one action other than Send since the last look, which is of this kind."""
        done, self.done = self.done, []
        return only(kind, done)

    def answer(self, peer: Peer, queued: QueueDraft, tree: DraftTree) -> list[HubMessage]:
        """The drafting thread is done with a request; what this peer gets of it."""
        actions = self.protocol.answer(
            queued.session, queued.epoch, queued.base_len, tree, queue_us=5, service_us=7, now=self.now
        )
        return self.carry_out(actions, peer.connection)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class TargetUnderTest:
    """A target whose hub is played by the test, message by message."""

    def __init__(self, window: int | None = None, **hello: object) -> None:
        self.clock = Clock()
        self.protocol = TargetProtocol(a_hello(**hello), self.clock, window)

    def connect(self, welcome: Welcome | None = None, ready: bool = True) -> list[TargetEvent]:
        """Connect and be welcomed; the events, the frames sent so far thrown away up to HELLO."""
        self.protocol.connected()
        assert isinstance(self.sent()[0], Hello)
        events = self.hear(welcome or a_welcome())
        if ready:
            events += self.hear(Ready((welcome or a_welcome()).drafter))
        return events

    def hear(self, *messages: HubMessage) -> list[TargetEvent]:
        """What comes of these messages from the hub."""
        return [event for message in messages for event in self.protocol.receive(encode(message))]

    def sent(self) -> list[TargetMessage]:
        """The messages that go out now."""
        return [decode_from_target(frame) for frame in self.protocol.frames()]

    def open(self, tag: bytes = b"t" * 16, t_first: int = 7) -> TargetSession:
        """A session that the hub opened under this tag."""
        session = self.protocol.open_session([t_first], "greedy")
        ref = [message.ref for message in self.sent() if isinstance(message, Open)][-1]
        assert only(SessionOpened, self.hear(Opened(ref, tag, 0))).session is session
        return session
