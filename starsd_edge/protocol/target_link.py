"""What all sessions of one target share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starsd_edge.protocol.codec import encode, kind_of
from starsd_edge.protocol.counters import WireCounters
from starsd_edge.protocol.features import NO_FEATURES
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Hello, TargetMessage, Welcome
from starsd_edge.protocol.up_rate import UpRate

if TYPE_CHECKING:
    from starsd_edge.protocol.target_session import TargetSession


@dataclass
class TargetLink:
    """The state of the link as its sessions see it.

    Attributes:
        welcome: the hub's, while this connection is welcomed.
        draft_window: rows that a session begins with at most, None for all of its text.
        up_rate: of the path to the hub; None where rows go out at once.
        ready: the hub's drafter is warm.
        outbox: (kind, frame) still to be sent, in order.
        drains: how often the outbox was emptied.
        clamped_rows: rows so far, of all sessions, with a feature that was not finite.
        refs: sessions whose OPEN is unanswered, by ref.
        tags: sessions that are open on this connection, by tag.
    """

    hello: Hello
    clock: Callable[[], float]
    draft_window: int | None = None
    up_rate: UpRate | None = None
    counters: WireCounters = field(default_factory=WireCounters)
    welcome: Welcome | None = None
    ready: bool = False
    outbox: list[tuple[str, bytes]] = field(default_factory=list)
    drains: int = 0
    clamped_rows: int = 0
    refs: dict[int, TargetSession] = field(default_factory=dict)
    tags: dict[bytes, TargetSession] = field(default_factory=dict)
    _last_ref: int = 0

    def post(self, message: TargetMessage) -> None:
        """Send this when the outbox is drained next."""
        frame = encode(message)
        self.outbox.append((kind_of(message), frame))
        if self.up_rate is not None:
            self.up_rate.sent(len(frame), self.clock())

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of rows may go out now."""
        return self.up_rate is None or self.up_rate.has_room(size)

    @property
    def chunk_bytes(self) -> int:
        """Most bytes of rows in a message."""
        return MAX_TENSOR_BYTES if self.up_rate is None else min(MAX_TENSOR_BYTES, self.up_rate.chunk_bytes)

    def next_ref(self) -> int:
        """A number for an OPEN."""
        self._last_ref += 1
        return self._last_ref

    @property
    def feature_codec(self) -> str:
        """How features travel with rows, if they do."""
        return NO_FEATURES if self.welcome is None else self.welcome.feature_codec
