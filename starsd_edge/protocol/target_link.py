"""What all sessions of one target share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starsd_edge.protocol.codec import encode, kind_of
from starsd_edge.protocol.counters import WireCounters
from starsd_edge.protocol.features import NO_FEATURES
from starsd_edge.protocol.messages import Hello, TargetMessage, Welcome

if TYPE_CHECKING:
    from starsd_edge.protocol.target_session import TargetSession


@dataclass
class TargetLink:
    """The state of the link as its sessions see it.

    Attributes:
        welcome: the hub's, while this connection is welcomed.
        draft_window: rows that a session begins with at most, None for all of its text.
        ready: the hub's drafter is warm.
        outbox: (kind, frame) still to be sent, in order.
        drains: how often the outbox was emptied.
        refs: sessions whose OPEN is unanswered, by ref.
        tags: sessions that are open on this connection, by tag.
    """

    hello: Hello
    clock: Callable[[], float]
    draft_window: int | None = None
    counters: WireCounters = field(default_factory=WireCounters)
    welcome: Welcome | None = None
    ready: bool = False
    outbox: list[tuple[str, bytes]] = field(default_factory=list)
    drains: int = 0
    refs: dict[int, TargetSession] = field(default_factory=dict)
    tags: dict[bytes, TargetSession] = field(default_factory=dict)
    _last_ref: int = 0

    def post(self, message: TargetMessage) -> None:
        """Send this when the outbox is drained next."""
        self.outbox.append((kind_of(message), encode(message)))

    def next_ref(self) -> int:
        """A number for an OPEN."""
        self._last_ref += 1
        return self._last_ref

    @property
    def feature_codec(self) -> str:
        """How features travel with rows, if they do."""
        return NO_FEATURES if self.welcome is None else self.welcome.feature_codec
