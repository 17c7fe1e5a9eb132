"""Several requests at once: a thread that uses the engine, and streams that any thread or event loop can read.

    with target.requests() as requests:
        streams = [requests.submit(target.request(prompt)) for prompt in prompts]
        for piece in streams[0]:
            print(piece.text, end="")
        answer = streams[0].result()

The thread runs an `AnswerSet` and sleeps while there is nothing to do; a request, an end that is asked for and a draft
wake it. Nobody who reads slowly holds it up: pieces wait in the stream, as many as the answer has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType

from starsd_edge.errors import StarsdError
from starsd_jetson.answer_set import AnswerSet
from starsd_jetson.answers import Answer, Piece, Request, check_prompt
from starsd_jetson.hub_link import log_fault

_CLOSED = "the target answers no more requests: it was closed"


class AnswerStream:
    """The pieces of one answer, as an iterator and as an asynchronous one; for one reader.

    To leave its context (`with` or `async with`) ends the answer.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._items: queue.SimpleQueue[Piece | Answer | BaseException] = queue.SimpleQueue()
        self._wake = wake
        self._listen: Callable[[], None] | None = None
        self._arrived: asyncio.Event | None = None
        self._end: Answer | BaseException | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the answer with what it has, soon; harmless when it is over. From any thread."""
        self.is_cancelled = True
        self._wake()

    def result(self) -> Answer:
        """Read what is left, and give the answer. Raises what it failed with."""
        for _ in self:
            pass
        return self._answer()

    async def aresult(self) -> Answer:
        """As `result`, on an event loop."""
        async for _ in self:
            pass
        return self._answer()

    def put(self, item: Piece | Answer | BaseException) -> None:
        """Take in a piece, or the end. On the engine's thread."""
        self._items.put(item)
        listen = self._listen
        if listen is not None:
            with contextlib.suppress(RuntimeError):  # the reader's event loop is closed: nobody reads
                listen()

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Piece:
        if self._end is None:
            piece = self._taken(self._items.get())
            if piece is not None:
                return piece
        self._raise_error()
        raise StopIteration

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> Piece:
        if self._end is None:
            piece = self._taken(await self._next_item())
            if piece is not None:
                return piece
        self._raise_error()
        raise StopAsyncIteration

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def _next_item(self) -> Piece | Answer | BaseException:
        if self._arrived is None:
            arrived = self._arrived = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._listen = lambda: loop.call_soon_threadsafe(arrived.set)  # type: ignore[assignment]
        while True:
            self._arrived.clear()
            with contextlib.suppress(queue.Empty):
                return self._items.get_nowait()
            await self._arrived.wait()

    def _taken(self, item: Piece | Answer | BaseException) -> Piece | None:
        if isinstance(item, Piece):
            return item
        self._end = item
        return None

    def _raise_error(self) -> None:
        if isinstance(self._end, BaseException):
            raise self._end

    def _answer(self) -> Answer:
        if not isinstance(self._end, Answer):
            raise StarsdError("the answer is not over")
        return self._end


class Requests:
    """Takes in requests from any thread; see the module.

    Attributes:
        is_closed: no more requests are taken in.

    Args:
        answer_set: works at them.
        clock: monotonic seconds.
        wake: set whenever there may be something to do.
        on_close: called on the thread at its end.
    """

    def __init__(
        self,
        answer_set: AnswerSet,
        clock: Callable[[], float],
        wake: threading.Event,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._set = answer_set
        self._clock = clock
        self._wake = wake
        self._on_close = on_close
        self._lock = threading.Lock()
        self.is_closed = False
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def submit(self, request: Request, cancelled: Callable[[], bool] = lambda: False) -> AnswerStream:
        """Take in a request. Its answer comes piece by piece, its text that of the request alone.

        Args:
            cancelled: asked on the engine's thread between passes, also before the first token; True ends the answer
                with what it has. `AnswerStream.cancel` does the same, sooner.

        Raises:
            UsageError: the prompt is empty or too long.
            BusyError: as many requests as may be are taken in; it says after how many seconds to try again.
            StarsdError: closed.
        """
        return self.submit_all([request], cancelled)[0]

    def submit_all(
        self, requests: Sequence[Request], cancelled: Callable[[], bool] = lambda: False
    ) -> list[AnswerStream]:
        """Take in all of these requests, or none of them: errors as of `submit`. Where nothing is worked at, there is
        room for any number.
        """
        for request in requests:
            check_prompt(request)
        with self._lock:
            if self.is_closed:
                raise StarsdError(_CLOSED)
            self._set.require_room(len(requests))
            streams = [self._add(request, cancelled) for request in requests]
        self._wake.set()
        return streams

    def _add(self, request: Request, cancelled: Callable[[], bool]) -> AnswerStream:
        stream = AnswerStream(self._wake.set)
        self._set.add(request, stream.put, lambda: stream.is_cancelled or cancelled(), stream.put)
        return stream

    def stream(self, request: Request, cancelled: Callable[[], bool] = lambda: False) -> Generator[Piece, None, Answer]:
        """`submit`, as a generator whose end ends the answer."""
        with self.submit(request, cancelled) as stream:
            yield from stream
            return stream.result()

    @property
    def open(self) -> int:
        """Answers that are worked at."""
        return self._set.open

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn to begin."""
        return self._set.waiting

    def close(self) -> None:
        """End the thread; what is not over fails. Idempotent."""
        with self._lock:
            self.is_closed = True
        self._wake.set()
        self._thread.join()

    def __enter__(self) -> Requests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        failure: BaseException = StarsdError(_CLOSED)
        try:
            while not self.is_closed:
                self._wake.clear()
                until = self._set.step()
                if until is not None and not self.is_closed:
                    self._wake.wait(None if math.isinf(until) else max(0.0, until - self._clock()))
        except Exception as error:  # of ours: every reader is told
            failure = error
            log_fault("a fault of our own among the answers", error)
        finally:
            with self._lock:
                self.is_closed = True
                self._set.fail(failure)
            self._on_close()
