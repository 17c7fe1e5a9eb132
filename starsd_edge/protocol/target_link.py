"""What all sessions of one target share: the state of the link, its outbox, and how many rows may be on their way.

Rows that are on their way delay everything behind them: pings, requests, the end of the session. So only so many are
sent as arrive within `AHEAD_S` at the rate that was measured, on top of what fills the path, and they travel in pieces
of a part of that. What has arrived is known from the hub's answers to WebSocket pings, which are sent behind rows as
marks: the whole way counts, with all buffers and proxies in between. The rate is sampled as BBR does it (bytes that
arrived between the sending of a mark and its answer, over the time since the bytes before them had arrived).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from starsd_edge.protocol.codec import encode, kind_of
from starsd_edge.protocol.counters import WireCounters
from starsd_edge.protocol.features import NO_FEATURES
from starsd_edge.protocol.messages import MAX_TENSOR_BYTES, Hello, TargetMessage, Welcome

AHEAD_S = 2.0
"""Seconds within which all rows that are on their way arrive."""
_CHUNK_S = 0.5
"""Seconds that a message of rows takes on its way."""
FIRST_RATE = 16 << 10
"""Bytes per second that are assumed before anything was measured: few enough for the slowest links."""
LEAST_WINDOW = 4 << 10
"""Bytes that may always be on their way, however slow the path: with fewer it would stand idle between marks."""
MOST_WINDOW = 1 << 20
"""Most bytes on their way, however fast the path: it may become slow while they are."""
_MARK_BYTES = 4 << 10
"""Bytes behind which a mark is due."""
_LEAST_S = 1e-4
"""Seconds that a sample is taken over at least, so that no rate is infinite."""


@dataclass(frozen=True)
class _Mark:
    """A ping behind the first `sent` bytes, and what had arrived, and since when, at that time."""

    sent: int
    arrived: int
    arrived_at: float
    sent_at: float
    was_full: bool


class UpRate:
    """How many bytes may be on their way to the hub, for one connection after another. It has to be told of marks that
    arrive: until the first does, it lets no more than a window of bytes out.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new connection, perhaps on another path."""
        self._rate = float(FIRST_RATE)
        self._way_s = 0.0
        """Seconds from sending a mark to its answer, the least of all marks; 0 before the first."""
        self._measured = False
        self._sent = self._arrived = self._marked = 0
        self._arrived_at = 0.0
        self._full = False
        self._marks: deque[_Mark] = deque()

    @property
    def chunk_bytes(self) -> int:
        """Size of a message of rows."""
        return max(LEAST_WINDOW // 4, int(self._rate * _CHUNK_S))

    @property
    def _window(self) -> float:
        return min(MOST_WINDOW, max(LEAST_WINDOW, self._rate * (AHEAD_S + self._way_s)))

    @property
    def is_full(self) -> bool:
        """Whether something waits for room: a mark is wanted behind what was sent, if there is none."""
        return self._full

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be sent now; where nothing is on its way, always."""
        on_the_way = self._sent - self._arrived
        self._full = on_the_way > 0 and on_the_way + size > self._window
        return not self._full

    def sent(self, size: int, now: float) -> None:
        """A message goes out."""
        if self._sent == self._arrived:
            self._arrived_at = now  # the path was empty: its time begins here
        self._sent += size

    def mark(self, written: int, now: float) -> bool:
        """Whether a mark is due behind the first `written` bytes of this connection; then it has to be sent."""
        unmarked = written - self._marked
        if unmarked <= 0 or (unmarked < min(_MARK_BYTES, self._window / 4) and not self._full):
            return False
        self._marked = written
        self._marks.append(_Mark(written, self._arrived, self._arrived_at, now, self._full))
        return True

    def arrived(self, written: int, now: float) -> None:
        """The mark behind the first `written` bytes was answered."""
        while self._marks and self._marks[0].sent <= written:
            mark = self._marks.popleft()
            if mark.sent != written:
                continue
            way_s = max(_LEAST_S, now - mark.sent_at)
            self._way_s = min(self._way_s or way_s, way_s)
            rate = (mark.sent - mark.arrived) / max(_LEAST_S, now - mark.arrived_at)
            self._learn(rate, mark.was_full or self._full)
            self._arrived, self._arrived_at = mark.sent, now

    def _learn(self, rate: float, was_full: bool) -> None:
        """A path that was not filled can be faster than it seemed, not slower."""
        if rate > self._rate or (was_full and not self._measured):
            self._rate = rate
        elif was_full:
            self._rate += (rate - self._rate) / 2
        self._measured = self._measured or was_full


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
        refs: numbers of the sessions whose OPEN is unanswered, by ref.
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
    refs: dict[int, int] = field(default_factory=dict)
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
        """A number for an OPEN, new for every one."""
        self._last_ref += 1
        return self._last_ref

    @property
    def feature_codec(self) -> str:
        """How features travel with rows, if they do."""
        return NO_FEATURES if self.welcome is None else self.welcome.feature_codec
