"""Streams, events and captured graphs of a fake device. Nothing that is queued is done before somebody waits for it.

So a buffer that is read too early still holds what it held, and an input that is overwritten too early gives what was
written last, as it may on a device. Streams that nothing orders are run as late as can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Work:
    """One thing queued on a stream.

    Attributes:
        after: works of other streams that have to be done first.
    """

    what: str
    run: Callable[[], None]
    stream: Stream
    after: list[Work] = field(default_factory=list)
    done: bool = False


@dataclass
class Task:
    """What a stream is asked to do.

    Attributes:
        run: does it.
        require: asked on every launch of a graph that holds it whether it may be queued on this stream.
        queued: told about the work that comes of it.
    """

    what: str
    run: Callable[[], None]
    require: Callable[[Stream], None] = lambda stream: None
    queued: Callable[[Work], None] = lambda work: None


@dataclass(eq=False)
class Capture:
    """A capture that is going on: what it holds, and whether something has spoilt it."""

    tasks: list[Task] = field(default_factory=list)
    spoilt: bool = False


@dataclass(eq=False)
class Stream:
    """A queue of work.

    Attributes:
        queue: not done yet.
    """

    handle: int
    queue: deque[Work] = field(default_factory=deque)
    last: Work | None = None
    capture: Capture | None = None


@dataclass(eq=False)
class Event:
    """A mark in a stream, or in a capture; nothing until it is recorded."""

    handle: int
    mark: Work | None = None
    captured: bool = False


@dataclass(eq=False)
class Graph:
    """What a capture gave."""

    handle: int
    tasks: list[Task]


DEFAULT_STREAM = 0


class Scheduler:
    """All streams of a device."""

    def __init__(self, after_waiting: Callable[[], None]) -> None:
        """Args:
        after_waiting: called whenever a wait is over.
        """
        self._after_waiting = after_waiting
        self._default = Stream(DEFAULT_STREAM)
        self._streams = [self._default]

    def open(self, handle: int) -> Stream:
        """A new stream."""
        stream = Stream(handle)
        self._streams.append(stream)
        return stream

    @property
    def default(self) -> Stream:
        """The stream that is always there, and on which nothing is done."""
        return self._default

    @property
    def capturing(self) -> list[Capture]:
        """What is being captured."""
        return [stream.capture for stream in self._streams if stream.capture]

    @property
    def pending(self) -> list[str]:
        """What nobody has waited for."""
        return [work.what for stream in self._streams for work in stream.queue]

    def submit(self, stream: Stream, task: Task) -> None:
        """Queue a task, or note it in the capture that goes on there."""
        if stream.capture is not None:
            stream.capture.tasks.append(task)
            return
        task.require(stream)
        task.queued(self._queue(stream, task.what, task.run))

    def launch(self, graph: Graph, stream: Stream) -> None:
        """Queue all that a graph holds."""
        for task in graph.tasks:
            task.require(stream)
        for task in graph.tasks:
            task.queued(self._queue(stream, f"graph: {task.what}", task.run))

    def mark(self, stream: Stream) -> Work:
        """A work that does nothing, for events."""
        return self._queue(stream, "an event", lambda: None)

    def wait_on(self, stream: Stream, mark: Work) -> None:
        """What comes next on the stream comes after this mark."""
        self._queue(stream, "waiting for an event", lambda: None, [mark])

    def finish(self, work: Work | None) -> None:
        """Wait until a work is done."""
        if work is not None:
            self._run_until(work)
        self._after_waiting()

    def finish_all(self) -> None:
        """Wait until nothing is queued."""
        for stream in self._streams:
            if stream.last is not None:
                self._run_until(stream.last)
        self._after_waiting()

    def step(self, work: Work | None) -> bool:
        """Whether a work is done; where it is not, the next one of its stream is: asking again and again ends."""
        if work is None or work.done:
            return True
        if work.stream.queue:
            self._run_until(work.stream.queue[0])
        return False

    def _queue(self, stream: Stream, what: str, run: Callable[[], None], after: Iterable[Work] = ()) -> Work:
        work = Work(what, run, stream, list(after))
        stream.queue.append(work)
        stream.last = work
        return work

    def _run_until(self, work: Work) -> None:
        stream = work.stream
        while not work.done and stream.queue:
            first = stream.queue.popleft()
            first.done = True  # also where it fails: what a device has stumbled over it does not try again
            for other in first.after:
                self._run_until(other)
            first.run()
