"""Who answers: the requests of a target, which share its engine by turns.

HTTP knows only `Backend`: it hands in the requests of all choices together and reads one stream of what comes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from starsd_jetson.answers import Answer, Piece, Request
from starsd_jetson.requests import AnswerStream, Requests

Event: TypeAlias = "Piece | Answer"
"""Pieces of an answer, then the answer."""


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
            BusyError: there is no room for all of them.
        """

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""

    @property
    def running(self) -> int:
        """Requests that are being answered."""


class _Answers:
    """A job of `TargetBackend`: the answers of all its requests in one queue, which the event loop reads."""

    def __init__(
        self,
        streams: Sequence[AnswerStream],
        on_answer: Callable[[Answer], None],
        on_end: Callable[[_Answers], None],
    ) -> None:
        self.is_cancelled = False
        self._streams = streams
        self._events: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue()
        self._left = len(streams)
        self._on_answer = on_answer
        self._on_end = on_end
        self._readers = [asyncio.create_task(self._read(number, each)) for number, each in enumerate(streams)]

    async def next(self) -> tuple[int, Event]:
        number, event = await self._events.get()
        if self.is_cancelled:
            raise JobCancelledError
        if isinstance(event, Exception):
            raise event
        return number, event

    def cancel(self) -> None:
        self.is_cancelled = True
        for stream in self._streams:
            stream.cancel()
        self._events.put_nowait((0, JobCancelledError()))

    async def _read(self, number: int, stream: AnswerStream) -> None:
        try:
            async for piece in stream:
                self._events.put_nowait((number, piece))
            answer = await stream.aresult()
            self._on_answer(answer)
            self._events.put_nowait((number, answer))
        except Exception as error:  # whatever an engine can raise: other requests are answered all the same
            self._events.put_nowait((number, error))
        finally:
            self._left -= 1
            if not self._left:
                self._on_end(self)


class TargetBackend:
    """The backend of one target, which works at several requests by turns.

    Attributes:
        on_answer: called on the event loop with each answer that has ended, also one that nobody waits for.
    """

    def __init__(self, requests: Requests) -> None:
        self.on_answer: Callable[[Answer], None] = lambda answer: None
        self._requests = requests
        self._jobs: set[_Answers] = set()

    @property
    def waiting(self) -> int:
        """See `Backend`."""
        return self._requests.waiting

    @property
    def running(self) -> int:
        """See `Backend`."""
        return self._requests.open

    @property
    def abandoned(self) -> int:
        """Jobs that nobody waits for any more, and that end at the next pass."""
        return sum(job.is_cancelled for job in self._jobs)

    def submit(self, requests: Sequence[Request]) -> Job:
        """See `Backend`. One that is idle takes a request of any number of choices."""
        job = _Answers(self._requests.submit_all(requests), self.on_answer, self._jobs.discard)
        self._jobs.add(job)
        return job

    def cancel_all(self) -> None:
        """Nobody waits for any answer any more. Called on the event loop."""
        for job in list(self._jobs):
            job.cancel()

    def close(self) -> None:
        """End what is being answered, and the thread of the engine."""
        self._requests.close()
