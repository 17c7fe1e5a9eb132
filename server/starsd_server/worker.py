"""The drafting thread: it takes work from the queue, has the drafters do it, and counts how it spends its time.

It never sleeps while the queue holds work. Between two passes it only hands over the results of the first, in one call,
and takes the next work: what passes cost is recorded on the event loop.

All of its time belongs to one of three states: *busy* in a drafter, *idle* while there was no work, and *lag*, while
work waited and no drafter ran (waking up, taking work, handing results back). A work-conserving hub has almost no lag.

Results go to the event loop through a thread of their own. Waking the loop is a system call. During it the interpreter
is free, and the loop takes it: the drafting thread would then have to wait for the interpreter although work waits. So
the drafting thread only puts the result into a queue, and the other thread wakes the loop while the next pass runs
outside the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue

from starsd_edge.telemetry.hub_facts import TimeUse
from starsd_server.draft_queue import Taken, WorkQueue
from starsd_server.drafter_pool import Done, DrafterPool

log = logging.getLogger(__name__)


class DraftWorker:
    """The thread around a `DrafterPool`."""

    def __init__(
        self,
        pool: DrafterPool,
        queue: WorkQueue,
        deliver: Callable[[Done], None],
        died: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Args:
        deliver: called on the drafting thread after each piece of work; must not block.
        died: called on the drafting thread when it ends without having been asked to.
        clock: monotonic seconds.
        """
        self._pool = pool
        self._queue = queue
        self._deliver = deliver
        self._died = died
        self._clock = clock
        self._meter = UseMeter(clock())
        self._faulty = False
        self._next: Taken | None = None
        """The next work, where it was taken from the queue already."""
        self._thread = threading.Thread(target=self._run, name="drafting", daemon=True)

    def start(self) -> None:
        """Begin: warm up the drafters, then work."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after the draft in progress; whether it did within `timeout_s` seconds."""
        self._queue.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and has had no fault."""
        return self._thread.is_alive() and not self._faulty

    def time_use(self) -> TimeUse:
        """How the thread has spent its time until now."""
        return self._meter.read(self._clock())

    def _run(self) -> None:
        try:
            self._warm_up()
            while self.work_once():
                pass
        except BaseException:
            log.exception("the drafting thread ended by a fault of its own")
            self._faulty = True  # the thread itself lives on for a moment
            self._died()

    def _warm_up(self) -> None:
        now = self._clock()
        self._meter.begin_work(now, now)
        for kind in self._pool.health:
            self._deliver(Done((self._pool.warm_up(kind),)))
        self._meter.end_work(self._clock())

    def work_once(self) -> bool:
        """Take one piece of work, waiting for it if there is none, and do it; False once the queue is closed.

        What waits by then is taken before anything else: until it is, the drafter stands still.
        """
        if self._next is None:
            self._next = self._queue.take()
            if self._next is None:
                return False
            self._meter.begin_work(self._next.work_since, self._clock())
        done = self._pool.do(self._next.work)
        ended = self._clock()
        self._next = self._queue.take_if_any()
        self._deliver(done)
        self._meter.end_work(ended)
        if self._next is not None:
            self._meter.begin_work(self._next.work_since, self._clock())
        return True


@dataclass(frozen=True)
class _Sums:
    use: TimeUse
    marked_at: float
    working: bool


class UseMeter:
    """Counts the time of one thread by state; `now` in seconds on a monotonic clock.

    One thread writes, others may read: the sums are one immutable object, replaced in a single assignment.
    """

    def __init__(self, now: float) -> None:
        self._sums = _Sums(TimeUse(), now, working=False)

    def begin_work(self, work_since: float, now: float) -> None:
        """A drafter starts: before, it was idle until `work_since`, when work came to an empty queue, and lag after."""
        sums = self._sums
        waited_from = min(max(work_since, sums.marked_at), now)
        before = sums.use
        use = TimeUse(
            busy_s=before.busy_s,
            idle_s=before.idle_s + (waited_from - sums.marked_at),
            lag_s=before.lag_s + (now - waited_from),
        )
        self._sums = _Sums(use, now, working=True)

    def end_work(self, now: float) -> None:
        """The drafter has ended."""
        self._sums = _Sums(_with_busy(self._sums, now), now, working=False)

    def read(self, now: float) -> TimeUse:
        """The sums up to now: work in progress counts as busy, a wait in progress as idle."""
        sums = self._sums
        if sums.working:
            return _with_busy(sums, now)
        return replace(sums.use, idle_s=sums.use.idle_s + max(0.0, now - sums.marked_at))


def _with_busy(sums: _Sums, now: float) -> TimeUse:
    before = sums.use
    return TimeUse(before.busy_s + max(0.0, now - sums.marked_at), before.idle_s, before.lag_s)


class Handover:
    """Passes results on, on a thread of its own, in the order in which they were put in.

    Args:
        pass_on: called on this object's thread; must not block.
        died: called on this object's thread when it ends without having been asked to.
    """

    def __init__(self, pass_on: Callable[[Done], None], died: Callable[[], None]) -> None:
        self._pass_on = pass_on
        self._died = died
        self._results: SimpleQueue[Done | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="handover", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, done: Done) -> None:
        """Put a result in; takes about a microsecond."""
        self._results.put(done)

    def stop(self) -> None:
        """Pass on the results that wait, and end the thread."""
        self._results.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (done := self._results.get()) is not None:
                self._pass_on(done)
        except BaseException:
            log.exception("the thread that hands drafts over ended by a fault of its own")
            self._died()
