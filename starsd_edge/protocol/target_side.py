"""The target's end of the wire as a state machine: frames and rows in, frames and events out.

One `TargetProtocol` lives as long as the target and survives reconnects: it keeps every session's rows (and features) so that it can resume, resync or
join late. Not thread-safe: the link guards it with a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.messages import Hello, Welcome
from starsd_edge.speculation.tree import DraftShape, DraftTree


@dataclass(frozen=True)
class Welcomed:
    """The hub accepted this target. `restarted`: another instance than last time, all sessions are opened anew."""

    welcome: Welcome
    restarted: bool


@dataclass(frozen=True)
class HubReady:
    """The hub's drafter is warm."""

    drafter: str


@dataclass(frozen=True)
class SessionOpened:
    """A session may ask for drafts now."""

    session: TargetSession


@dataclass(frozen=True)
class DraftArrived:
    """A checked tree hanging from the root at `base_len` of this session, perhaps late: the caller rebases it.

    Attributes:
        round_trip_us: from sending the request to receiving the draft, on the target's clock.
        hub_us: of that, the time on the hub; the rest is the link.
        frame_bytes: size of the DRAFT on the wire.
    """

    session: TargetSession
    epoch: int
    base_len: int
    tree: DraftTree
    round_trip_us: int
    hub_us: int
    queue_us: int
    service_us: int
    frame_bytes: int


@dataclass(frozen=True)
class SessionEnded:
    """The hub refused or ended a session; the target decodes on by itself and may open it anew after `retry_after_s`."""

    session: TargetSession
    message: str
    retry_after_s: float


@dataclass(frozen=True)
class Refused:
    """The hub refused the connection. `final`: trying again will not help (version, fingerprints)."""

    code: str
    message: str
    final: bool
    retry_after_s: float


TargetEvent = Union[Welcomed, HubReady, SessionOpened, DraftArrived, SessionEnded, Refused]


class TargetSession:
    """One sequence as the hub is told of it."""

    @property
    def is_open(self) -> bool:
        """Whether the hub has it and drafts may be asked for."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Rows appended so far: n, the base_len of the next request."""
        raise NotImplementedError

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None = None) -> None:
        """Rows whose tokens are final. Kept; sent with the next `extend` or `request`."""
        raise NotImplementedError

    def extend(self) -> None:
        """Send the rows not yet sent, in chunks within the wire's caps, asking nothing. No-op while not open."""
        raise NotImplementedError

    def request(self, shape: DraftShape) -> int | None:
        """Send the rows not yet sent and ask for a tree under the last token; the epoch, or None while not open."""
        raise NotImplementedError


class TargetProtocol:
    """The link's state and all its sessions."""

    def __init__(self, hello: Hello, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        raise NotImplementedError

    def connected(self) -> None:
        """A WebSocket stands: HELLO goes out."""
        raise NotImplementedError

    def disconnected(self) -> None:
        """The WebSocket is gone. Sessions and their rows stay."""
        raise NotImplementedError

    def receive(self, frame: bytes) -> list[TargetEvent]:
        """Take in one binary message from the hub. Never raises for anything a peer can send: what is malformed is dropped and counted."""
        raise NotImplementedError

    def frames(self) -> list[bytes]:
        """Drain the frames to be sent, in order."""
        raise NotImplementedError

    def open_session(self, t_first: int, sampling_kind: str) -> TargetSession:
        """Begin a session at position 0; OPEN goes out now or when welcomed."""
        raise NotImplementedError

    def close_session(self, session: TargetSession) -> None:
        """End it: CLOSE goes out if the hub knows it; late drafts for it are dropped."""
        raise NotImplementedError
