"""The hub's end of the wire as a state machine: frames and results in, actions out.

One `HubProtocol` per hub holds the table of sessions; one `HubConnection` per WebSocket. Nothing here waits, sleeps or touches a socket: the front door
hands in frames with the time of their arrival and carries out the actions; the drafting thread's results come back through `answer`. Not
thread-safe: everything is called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree


@dataclass(frozen=True)
class Offer:
    """What the hub offers a target whose HELLO it accepts.

    Attributes:
        drafter: kind of the drafter that fits.
        drafter_fp: its fingerprint.
        feature_codec: codec of the features it wants, "none" when ids are enough.
        notice: a line for the user, or "".
    """

    drafter: str
    drafter_fp: str
    feature_codec: str
    notice: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a HELLO is not accepted: becomes ERROR(scope = connection)."""

    code: str
    message: str


@dataclass(frozen=True)
class HubLimits:
    """Caps of one hub."""

    max_sessions_per_connection: int = 16
    max_sessions: int = 1024
    max_nodes: int = 64
    max_depth: int = 16
    heartbeat_s: float = 10.0
    resume_grace_s: float = 30.0


@dataclass(frozen=True)
class Send:
    """Send this frame on that connection."""

    connection: HubConnection
    frame: bytes


@dataclass(frozen=True)
class OpenSession:
    """The drafter begins a session."""

    session: int
    drafter: str
    first_row: int
    t_first: int


@dataclass(frozen=True)
class Feed:
    """True rows for the drafter."""

    rows: NewRows


@dataclass(frozen=True)
class QueueDraft:
    """A tree is wanted; supersedes a queued request of the same session."""

    session: int
    epoch: int
    base_len: int
    shape: DraftShape
    received_at: float


@dataclass(frozen=True)
class DropSession:
    """The session is gone: drop its queued work, free the drafter's state."""

    session: int


@dataclass(frozen=True)
class HangUp:
    """Close that connection with this WebSocket close code, after what was sent before."""

    connection: HubConnection
    code: int
    reason: str


HubAction = Union[Send, OpenSession, Feed, QueueDraft, DropSession, HangUp]


class HubProtocol:
    """The sessions of one hub and the rules of the conversation."""

    def __init__(
        self,
        hub_id: str,
        offer: Callable[[Hello], Offer | Refusal],
        limits: HubLimits,
        new_tag: Callable[[], bytes],
    ) -> None:
        """Args:
        hub_id: instance id, new at every start.
        offer: chooses a drafter for a HELLO.
        new_tag: 128 secret random bits.
        """
        raise NotImplementedError

    def connect(self, owner: str) -> HubConnection:
        """A connection whose authenticated key is `owner`."""
        raise NotImplementedError

    def answer(self, session: int, epoch: int, base_len: int, tree: DraftTree, queue_us: int, service_us: int, now: float) -> list[HubAction]:
        """A tree from the drafting thread: a DRAFT on the session's present connection, nothing when the session is gone or its connection away."""
        raise NotImplementedError

    def failed(self, session: int, epoch: int, message: str) -> list[HubAction]:
        """The drafter could not draft for this session: ERROR(scope = session) and the session ends; the others go on."""
        raise NotImplementedError

    def ready(self, drafter: str) -> list[HubAction]:
        """A drafter became warm: READY to every welcomed connection that was offered it (and to later ones right after WELCOME)."""
        raise NotImplementedError

    def expire(self, now: float) -> list[HubAction]:
        """Drop the sessions whose connection has been away for longer than the resume grace."""
        raise NotImplementedError


class HubConnection:
    """One target's connection."""

    def receive(self, frame: bytes, now: float) -> list[HubAction]:
        """Take in one binary WebSocket message; `now` in seconds on the hub's monotonic clock. Never raises for anything a peer can send."""
        raise NotImplementedError

    def lost(self, now: float) -> list[HubAction]:
        """The connection is gone; its sessions wait for a resume until the grace ends."""
        raise NotImplementedError
