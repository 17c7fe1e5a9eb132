"""Who answers: a bounded queue, and one thread that owns the engine and answers requests one after the other.

HTTP knows only `Backend`: it hands in the requests of all choices together and reads one stream of what comes of them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from starsd_edge.errors import StarsdError
from starsd_jetson.answers import Answer, Piece, Request

log = logging.getLogger(__name__)

Event: TypeAlias = "Piece | Answer"
"""Pieces of an answer, then the answer."""
Stream: TypeAlias = Callable[[Request, Callable[[], bool]], Generator[Piece, None, Answer]]
"""Answers one request; see `starsd_jetson.api.Answers.stream`."""


class QueueFullError(StarsdError):
    """So many requests wait that another one is not taken.

    Attributes:
        retry_after_s: when there will probably be room, in seconds.
    """

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} answers are waited for already: try again later")
        self.retry_after_s = retry_after_s


class JobCancelledError(Exception):
    """Nobody waits for these answers any more."""


class Job(Protocol):
    """The answers to the requests that were handed in together."""

    async def next(self) -> tuple[int, Event]:
        """What comes next, with the number of its request. Not to be called after the last answer.

        Raises:
            JobCancelledError: the job was cancelled.
            Exception: what the engine raised; nothing follows.
        """

    def cancel(self) -> None:
        """Nobody waits for the answers any more. Called on the event loop, at any time, also after the end."""


class Backend(Protocol):
    """Answers requests."""

    def submit(self, requests: Sequence[Request]) -> Job:
        """Take requests in. Called on the event loop; does not block.

        Raises:
            QueueFullError: there is no room for all of them.
        """

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""

    @property
    def running(self) -> int:
        """Requests that are being answered."""


@dataclass
class _QueuedJob:
    """A job of `OneByOne`."""

    loop: asyncio.AbstractEventLoop
    left: deque[tuple[int, Request]]
    events: asyncio.Queue[tuple[int, Event | BaseException]] = field(default_factory=asyncio.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)

    async def next(self) -> tuple[int, Event]:
        number, event = await self.events.get()
        if self.cancelled.is_set() and not isinstance(event, BaseException):
            raise JobCancelledError
        if isinstance(event, BaseException):
            raise event
        return number, event

    def cancel(self) -> None:
        self.cancelled.set()
        self.events.put_nowait((0, JobCancelledError()))

    def put(self, number: int, event: Event | BaseException) -> None:
        """From the engine's thread."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, (number, event))
        except RuntimeError:  # the loop is closed: nobody reads
            self.cancelled.set()


class OneByOne:
    """The backend of one target.

    Args:
        stream: answers one request; called on the backend's own thread, and nowhere else.
        limit: most requests that wait, beside those of the job at work.
        clock: monotonic seconds.
    """

    def __init__(self, stream: Stream, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._limit = limit
        self._clock = clock
        self._queue: deque[_QueuedJob] = deque()
        self._changed = threading.Condition()
        self._running = 0
        self._is_closed = False
        self._answer_s = 1.0
        """How long an answer takes, smoothed."""
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """See `Backend`."""
        with self._changed:
            return self._count()

    @property
    def running(self) -> int:
        """See `Backend`."""
        return self._running

    def submit(self, requests: Sequence[Request]) -> Job:
        """See `Backend`. An idle backend takes a request of any number of choices."""
        job = _QueuedJob(asyncio.get_running_loop(), deque(enumerate(requests)))
        with self._changed:
            waiting = self._count()
            is_idle = not waiting and not self._running
            if waiting + len(requests) > self._limit and not is_idle:
                raise QueueFullError(waiting + self._running, self._answer_s * (waiting + 1))
            self._queue.append(job)
            self._changed.notify()
        return job

    def cancel_all(self) -> None:
        """Nobody waits for any answer any more. Called on the event loop."""
        with self._changed:
            jobs = list(self._queue)
        for job in jobs:
            job.cancel()

    def close(self) -> None:
        """End what is being answered, and the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _count(self) -> int:
        return sum(len(job.left) for job in self._queue if not job.cancelled.is_set())

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            job, number, request = taken
            began = self._clock()
            self._answer(job, number, request)
            self._running = 0
            if not job.cancelled.is_set():
                self._answer_s += (self._clock() - began - self._answer_s) / 4

    def _take(self) -> tuple[_QueuedJob, int, Request] | None:
        """The next request; None at the end. Waits for one."""
        with self._changed:
            while not self._is_closed:
                while self._queue and (self._queue[0].cancelled.is_set() or not self._queue[0].left):
                    self._queue.popleft()
                if self._queue:
                    self._running = 1
                    number, request = self._queue[0].left.popleft()
                    return self._queue[0], number, request
                self._changed.wait()
        return None

    def _answer(self, job: _QueuedJob, number: int, request: Request) -> None:
        pieces = self._stream(request, lambda: self._is_closed or job.cancelled.is_set())
        try:
            while True:
                job.put(number, next(pieces))
        except StopIteration as end:
            job.put(number, end.value)
        except Exception as error:  # whatever an engine can raise: the next request is answered all the same
            job.put(number, error)
            job.left.clear()
        finally:
            pieces.close()
