"""`Q_in`: what the drafting thread has to do, one queue for all sessions.

Invariants: at most one request per session waits, the one with the highest epoch; a session's rows reach the drafter
in order and before the request that follows them; what belonged to a dropped session is gone at once; a long prefill
goes in turns of `rows_per_turn` rows, between which requests of other sessions are served.

`DraftQueue` is pure logic without clocks or threads; `WorkQueue` adds the lock and the waiting.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starsd_edge.protocol.hub_side import DropSession, Feed, OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.telemetry.hub_facts import QueueDepth
from starsd_server.pending_rows import PendingRows, feature_bytes

QueuedAction = OpenSession | Feed | QueueDraft | DropSession
"""The actions of the protocol that are work for the drafting thread."""

ROWS_PER_TURN = 64
"""Rows of one prefill turn: how long the requests of other sessions may have to wait for it."""
DRAFTS_PER_FEED = 4
"""Requests that are served between two prefill turns while both wait, so that neither starves the other."""


@dataclass(frozen=True)
class Begin:
    """The drafter begins a session."""

    opening: OpenSession


@dataclass(frozen=True)
class Absorb:
    """The drafter takes in rows of a session; nothing is asked yet."""

    rows: NewRows


@dataclass(frozen=True)
class Answer:
    """The drafter takes in the last rows (if any) of a session and drafts for it."""

    request: QueueDraft
    rows: NewRows | None


@dataclass(frozen=True)
class End:
    """The drafter frees a session."""

    session: int


Work = Begin | Absorb | Answer | End


class DraftOrder(Protocol):
    """Which of the requests that could be served now is served first."""

    def choose(self, ready: Sequence[QueueDraft]) -> QueueDraft:
        """One of `ready`, which holds at least one request and is sorted by time of arrival."""


class Fifo:
    """First come, first served. A request that superseded another keeps its place."""

    def choose(self, ready: Sequence[QueueDraft]) -> QueueDraft:
        """The one that has waited longest."""
        return ready[0]


class DraftQueue:
    """The work of all sessions and the order in which it is done."""

    def __init__(
        self,
        order: DraftOrder | None = None,
        rows_per_turn: int = ROWS_PER_TURN,
        drafts_per_feed: int = DRAFTS_PER_FEED,
    ) -> None:
        self._order = order or Fifo()
        self._rows_per_turn = rows_per_turn
        self._drafts_per_feed = drafts_per_feed
        self._endings: deque[int] = deque()
        self._openings: dict[int, OpenSession] = {}
        self._rows: dict[int, PendingRows] = {}
        self._waiting_bytes: Counter[str] = Counter()
        self._requests: dict[int, QueueDraft] = {}
        self._drafts_since_feed = 0
        self._superseded = 0
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._requests or self._rows or self._openings or self._endings)

    @property
    def depth(self) -> QueueDepth:
        """How much waits now."""
        rows = sum(pending.count for pending in self._rows.values())
        return QueueDepth(len(self._requests), rows, self._superseded, self._dropped)

    def put(self, action: QueuedAction) -> None:
        """Take in what the protocol wants of the drafting thread."""
        if isinstance(action, Feed):
            if len(action.rows.ids):
                self._put_rows(action)
        elif isinstance(action, QueueDraft):
            self._put_request(action)
        elif isinstance(action, OpenSession):
            self._openings[action.session] = action
        else:
            self._drop(action.session)

    def take(self) -> Work | None:
        """The next piece of work, or None when there is none."""
        if self._endings:
            return End(self._endings.popleft())
        if self._openings:
            return Begin(self._openings.pop(next(iter(self._openings))))
        ready = [request for request in self._requests.values() if self._is_ready(request.session)]
        feedable = next((session for session in self._rows if not self._is_wanted_ready(session)), None)
        if feedable is not None and (not ready or self._drafts_since_feed >= self._drafts_per_feed):
            return self._take_rows(feedable)
        return self._take_request(self._order.choose(ready)) if ready else None

    def waiting_bytes(self, owner: str) -> int:
        """Memory of the features that wait for the drafter, of all sessions of this key."""
        return self._waiting_bytes[owner]

    def _put_rows(self, feed: Feed) -> None:
        self._rows.setdefault(feed.rows.session, PendingRows(feed.owner)).append(feed.rows)
        self._waiting_bytes[feed.owner] += feature_bytes(feed.rows)

    def _release(self, owner: str, freed: int) -> None:
        self._waiting_bytes[owner] -= freed
        if self._waiting_bytes[owner] == 0:
            del self._waiting_bytes[owner]

    def _put_request(self, request: QueueDraft) -> None:
        waiting = self._requests.get(request.session)
        if waiting is not None:
            self._superseded += 1
            if waiting.epoch >= request.epoch:
                return
        self._requests[request.session] = request

    def _drop(self, session: int) -> None:
        if self._requests.pop(session, None) is not None:
            self._dropped += 1
        pending = self._rows.pop(session, None)
        if pending is not None:
            self._release(pending.owner, pending.feature_bytes)
        if self._openings.pop(session, None) is None:
            self._endings.append(session)

    def _is_ready(self, session: int) -> bool:
        """Whether few enough rows are missing that a request of this session can be served in one go."""
        pending = self._rows.get(session)
        return pending is None or pending.count <= self._rows_per_turn

    def _is_wanted_ready(self, session: int) -> bool:
        return session in self._requests and self._is_ready(session)

    def _take_rows(self, session: int) -> Absorb:
        self._drafts_since_feed = 0
        pending = self._rows.pop(session)
        rows = self._next_of(pending)
        if pending.count:
            self._rows[session] = pending  # to the end: prefills of several sessions take turns
        return Absorb(rows)

    def _next_of(self, pending: PendingRows) -> NewRows:
        rows = pending.take(self._rows_per_turn)
        self._release(pending.owner, feature_bytes(rows))
        return rows

    def _take_request(self, request: QueueDraft) -> Answer:
        self._drafts_since_feed += 1
        del self._requests[request.session]
        pending = self._rows.pop(request.session, None)
        return Answer(request, None if pending is None else self._next_of(pending))


@dataclass(frozen=True)
class Taken:
    """A piece of work and since when the queue has not been empty."""

    work: Work
    work_since: float


class WorkQueue:
    """A `DraftQueue` between the event loop, which puts, and the drafting thread, which takes and waits."""

    def __init__(self, queue: DraftQueue, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._queue = queue
        self._clock = clock
        self._changed = threading.Condition()
        self._work_since = 0.0
        self._closed = False

    @property
    def depth(self) -> QueueDepth:
        """How much waits now."""
        with self._changed:
            return self._queue.depth

    def waiting_bytes(self, owner: str) -> int:
        """Memory of the features that wait for the drafter, of all sessions of this key."""
        with self._changed:
            return self._queue.waiting_bytes(owner)

    def put(self, action: QueuedAction) -> None:
        """Add work; returns at once."""
        with self._changed:
            if not self._queue:
                self._work_since = self._clock()
            self._queue.put(action)
            self._changed.notify()

    def close(self) -> None:
        """No more work is handed out; a waiting `take` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> Taken | None:
        """The next piece of work, waiting for it only while the queue is empty; None once closed."""
        with self._changed:
            while not self._closed:
                work = self._queue.take()
                if work is not None:
                    return Taken(work, self._work_since)
                self._changed.wait()
            return None
