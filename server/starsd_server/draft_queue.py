"""`Q_in`: what the drafting thread has to do, one queue for all sessions.

Invariants:

- At most one request per session waits, the one with the highest epoch.
- A session's rows reach the drafter in order. A request sees the rows before it and no others: rows that came after it
  stay until it is served.
- All that belonged to a dropped session is gone at once. So is the request of a session whose connection is gone; its
  rows wait until there is nothing else to do.
- A long prefill goes in turns of `rows_per_turn` rows, between which requests of other sessions are served.
- All requests that wait for the same drafter and fit together are taken together, at once. To wait for more would gain
  nothing, since targets ask again only after they were answered.

`DraftQueue` is pure logic without clocks or threads; `WorkQueue` adds the lock and the waiting.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starsd_edge.protocol.hub_side import AddRows, Away, Back, DropSession, OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.scheduling.policies import Waiting
from starsd_edge.scheduling.scheduler import Scheduler
from starsd_edge.telemetry.hub_facts import QueueDepth
from starsd_server.pending_rows import DRAFTS_PER_FEED, ROWS_PER_TURN, FeedTurns, PendingRows, feature_bytes

QueuedAction = OpenSession | AddRows | QueueDraft | Away | Back | DropSession
"""The actions of the protocol that are work for the drafting thread."""

MAX_BATCH = 16
"""Most sessions drafted for in one pass."""
ROWS_OF_A_ROUND = 16
"""Most rows that may come with any request of a batch as part of its round. Rows beyond are prefill, of which a batch
takes one turn.
"""


@dataclass(frozen=True)
class Begin:
    """The drafter begins a session."""

    opening: OpenSession


@dataclass(frozen=True)
class Absorb:
    """The drafter takes in rows of a session; nothing is asked yet."""

    rows: NewRows


@dataclass(frozen=True)
class DraftWork:
    """The drafter takes in the last rows (if any) before the root of this request, and drafts under it."""

    request: QueueDraft
    rows: NewRows | None


@dataclass(frozen=True)
class End:
    """The drafter frees a session."""

    session: int


@dataclass(frozen=True)
class Batch:
    """One pass of a drafter for several sessions, the most urgent first."""

    drafter: str
    answers: tuple[DraftWork, ...]


Work = Begin | Absorb | Batch | End


class DraftQueue:
    """The work of all sessions and the order in which it is done."""

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        max_batch: int = MAX_BATCH,
        rows_per_turn: int = ROWS_PER_TURN,
        drafts_per_feed: int = DRAFTS_PER_FEED,
    ) -> None:
        self._scheduler = scheduler or Scheduler()
        self._max_batch = max_batch
        self._turns = FeedTurns(rows_per_turn, drafts_per_feed)
        self._endings: deque[int] = deque()
        self._openings: dict[int, OpenSession] = {}
        self._drafters: dict[int, str] = {}
        self._rows: dict[int, PendingRows] = {}
        self._waiting_bytes: Counter[str] = Counter()
        self._requests: dict[int, Waiting] = {}
        self._away: set[int] = set()
        self._superseded = 0
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._requests or self._rows or self._openings or self._endings)

    @property
    def depth(self) -> QueueDepth:
        """How much waits now."""
        rows = sum(pending.count for pending in self._rows.values())
        return QueueDepth(len(self._requests), rows, self._superseded, self._dropped)

    @property
    def policy(self) -> str:
        """The rule by which requests are ordered now."""
        return self._scheduler.policy

    def put(self, action: QueuedAction) -> None:
        """Take in what the protocol wants of the drafting thread."""
        if isinstance(action, AddRows):
            if len(action.rows.ids):
                self._put_rows(action)
        elif isinstance(action, QueueDraft):
            self._put_request(action)
        elif isinstance(action, OpenSession):
            self._openings[action.session] = action
            self._drafters[action.session] = action.drafter
        elif isinstance(action, Away):
            self._away.add(action.session)
            self._drop_request(action.session)
        elif isinstance(action, Back):
            self._away.discard(action.session)
        else:
            self._drop(action.session)

    def take(self, now: float) -> Work | None:
        """The next piece of work, or None when there is none; `now` in seconds on the clock of `received_at`."""
        if self._endings:
            return End(self._endings.popleft())
        if self._openings:
            return Begin(self._openings.pop(next(iter(self._openings))))
        ready = list(self._requests.values())
        feedable = None
        if self._rows:
            ready = [waiting for waiting in ready if self._is_ready(waiting.session)]
            feedable = self._feedable(idle=not ready)
        if feedable is not None and (not ready or self._turns.is_due):
            return self._take_rows(feedable)
        return self._take_batch(ready, now) if ready else None

    def spent(self, work: Work, seconds: float) -> None:
        """The drafter was busy with this work for this many seconds."""
        if isinstance(work, Batch):
            self._turns.drafted(seconds)
            self._scheduler.spent([answer.request.session for answer in work.answers], seconds)
        elif isinstance(work, Absorb):
            self._turns.fed(len(work.rows.ids), seconds)

    def waiting_bytes(self, owner: str) -> int:
        """Memory of the features that wait for the drafter, of all sessions of this key."""
        return self._waiting_bytes[owner]

    def _put_rows(self, feed: AddRows) -> None:
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
            if waiting.request.epoch >= request.epoch:
                return
        drafter = self._drafters.get(request.session, "")
        self._requests[request.session] = self._scheduler.admit(request, drafter, waiting)

    def _feedable(self, idle: bool) -> int | None:
        """The session whose rows come next; one that is away only where there is nothing else to do."""
        waiting = [session for session in self._rows if not self._is_wanted_ready(session)]
        here = next((session for session in waiting if session not in self._away), None)
        return here if here is not None or not idle else next(iter(waiting), None)

    def _drop_request(self, session: int) -> None:
        if self._requests.pop(session, None) is not None:
            self._dropped += 1

    def _drop(self, session: int) -> None:
        self._drop_request(session)
        self._away.discard(session)
        pending = self._rows.pop(session, None)
        if pending is not None:
            self._release(pending.owner, pending.feature_bytes)
        if self._openings.pop(session, None) is None:
            self._endings.append(session)
        self._drafters.pop(session, None)
        self._scheduler.forget(session)

    def _rows_to_feed(self, session: int) -> int:
        """Rows that may go to the drafter now: all that wait, or those before the root of the request that waits."""
        pending = self._rows.get(session)
        if pending is None:
            return 0
        waiting = self._requests.get(session)
        return pending.count if waiting is None else pending.before(waiting.request.base_len)

    def _is_ready(self, session: int) -> bool:
        """Whether few enough rows are missing that a request of this session can be served in one go."""
        return self._rows_to_feed(session) <= self._turns.rows

    def _is_wanted_ready(self, session: int) -> bool:
        return session in self._requests and self._is_ready(session)

    def _take_rows(self, session: int) -> Absorb:
        self._turns.begin()
        to_feed = self._rows_to_feed(session)
        pending = self._rows.pop(session)
        rows = self._next_of(pending, min(self._turns.rows, to_feed))
        if pending.count:
            self._rows[session] = pending  # to the end: prefills of several sessions take turns
        return Absorb(rows)

    def _next_of(self, pending: PendingRows, limit: int) -> NewRows:
        rows = pending.take(limit)
        self._release(pending.owner, feature_bytes(rows))
        return rows

    def _take_batch(self, ready: Sequence[Waiting], now: float) -> Batch:
        """One pass; together its requests bring no more than one turn of prefill."""
        chosen = self._scheduler.take_batch(ready, now, self._max_batch, self._turns.rows, self._prefill_of)
        self._turns.passed()
        return Batch(chosen[0].drafter, tuple(self._answer(waiting.request) for waiting in chosen))

    def _prefill_of(self, session: int) -> int:
        return max(0, self._rows_to_feed(session) - ROWS_OF_A_ROUND)

    def _answer(self, request: QueueDraft) -> DraftWork:
        to_feed = self._rows_to_feed(request.session)
        del self._requests[request.session]
        if not to_feed:
            return DraftWork(request, None)
        pending = self._rows[request.session]
        rows = self._next_of(pending, to_feed)
        if not pending.count:
            del self._rows[request.session]
        return DraftWork(request, rows)


@dataclass(frozen=True)
class Taken:
    """A piece of work, and since when the queue has not been empty."""

    work: Work
    work_since: float


class WorkQueue:
    """A `DraftQueue` between the event loop, which puts, and the drafting thread, which takes and waits."""

    def __init__(self, queue: DraftQueue, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._queue = queue
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._work_since = 0.0
        self._closed = False

    @property
    def depth(self) -> QueueDepth:
        """How much waits now."""
        with self._changed:
            return self._queue.depth

    @property
    def policy(self) -> str:
        """The rule by which requests are ordered now."""
        with self._changed:
            return self._queue.policy

    def waiting_bytes(self, owner: str) -> int:
        """Memory of the features that wait for the drafter, of all sessions of this key."""
        with self._changed:
            return self._queue.waiting_bytes(owner)

    def spent(self, work: Work, seconds: float) -> None:
        """The drafter was busy with this work for this many seconds."""
        with self._changed:
            self._queue.spent(work, seconds)

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
                taken = self._first()
                if taken is not None:
                    return taken
                self._changed.wait()
            return None

    def take_if_any(self) -> Taken | None:
        """The next piece of work; None where the queue is empty, or closed."""
        with self._changed:
            return None if self._closed else self._first()

    def _first(self) -> Taken | None:
        work = self._queue.take(self._clock())
        return None if work is None else Taken(work, self._work_since)
