"""The answers that one engine works at, pass by pass: whose turn it is, who waits for a draft, who waits for room.

An answer whose draft is on its way does not hold up the others: the engine runs whichever is ready, and nothing waits
unless all do. Whose turn it is goes by device time (start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996): of
the answers that are ready, the one that has had the least goes next; who begins, or comes back from a wait, has no
credit for the time before. A pass is a round or one chunk of a prompt, so nobody waits longer than for one pass of each
of the others.

Requests are begun in the order in which they came, as far as their sequences fit the KV budget. Nothing here blocks,
reads a clock of its own or starts a thread: `starsd_jetson.requests` does that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answering import Answering
from starsd_jetson.answers import CANCELLED, Answer, BusyError, Piece, Request, check_prompt, empty_answer
from starsd_jetson.drafting import DraftSource
from starsd_jetson.kept_sequences import KeptSequences, shared_length

NEVER = math.inf
"""A time that never comes: there is nothing to do."""
NEWEST = 1 / 4
"""Weight of the newest answer in the average of device time: about the last four count."""
LEAST_RETRY_S = 1
MOST_RETRY_S = 600
LEAST_SHARED = 16
"""Tokens from which on a prompt that begins like one that is being run waits for those rows. Fewer, such as a chat
template's marks, are run again sooner than they would come.
"""


@dataclass(frozen=True)
class Limits:
    """How many requests are taken in at once.

    Attributes:
        most_open: answers that are worked at by turns.
        most_waiting: requests beyond those that wait for their turn to begin; one more is refused.
    """

    most_open: int = 8
    most_waiting: int = 32


@dataclass(eq=False)
class Job:
    """A request in an `AnswerSet`, from `add` on.

    Attributes:
        deliver: called with every piece.
        cancelled: asked between passes.
        on_end: called with the answer, or with what the request failed with; nothing is delivered after that.
        end: what `on_end` was called with; None before.
    """

    request: Request
    deliver: Callable[[Piece], None]
    cancelled: Callable[[], bool]
    on_end: Callable[[Answer | BaseException], None]
    end: Answer | BaseException | None = None

    def finish(self, end: Answer | BaseException) -> None:
        """The answer is over."""
        self.end = end
        self.on_end(end)

    def result(self) -> Answer:
        """The answer of a job that is over; raises what it failed with."""
        if isinstance(self.end, Answer):
            return self.end
        raise self.end or RuntimeError("the answer is not over")


@dataclass
class _Open:
    """An answer that is worked at.

    Attributes:
        start_s: its tag: the least device time with which it counts in the next comparison.
        used_s: device time that it took in all.
    """

    job: Job
    answering: Answering
    source: DraftSource
    start_s: float
    used_s: float = 0.0


class AnswerSet:
    """See the module. All methods but `add` and `require_room` belong to the thread that uses the engine.

    Args:
        make_source: makes a draft source; each serves one answer at a time, and is used again.
        sequences: lends the KV.
        clock: monotonic seconds, that of the draft sources.
        limits: how many requests are taken in.
        room: tokens that a request's sequence needs room for.
        on_round: called after every round of any answer with its figures.
        on_idle: called when the last answer is over.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        make_source: Callable[[], DraftSource],
        sequences: KeptSequences,
        clock: Callable[[], float],
        limits: Limits = Limits(),
        *,
        room: Callable[[Request], int] = lambda request: request.context,
        on_round: Callable[[Round], None] = lambda done: None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._make_source = make_source
        self._sequences = sequences
        self._clock = clock
        self._limits = limits
        self._room = room
        self._on_round = on_round
        self._on_idle = on_idle
        self._waiting: deque[Job] = deque()
        self._may_begin = False
        """Whether something has changed since the waiting requests were last looked at."""
        self._open: list[_Open] = []
        self._free: list[DraftSource] = []
        """The source used last stands last and is used next: it has learnt most."""
        self._start_s = 0.0
        self._idle_since: float | None = None
        self._answer_s = 0.0

    @property
    def open(self) -> int:
        """Answers that are worked at."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn to begin."""
        return len(self._waiting)

    def add(
        self,
        request: Request,
        deliver: Callable[[Piece], None],
        cancelled: Callable[[], bool] = lambda: False,
        on_end: Callable[[Answer | BaseException], None] = lambda end: None,
    ) -> Job:
        """Take in a request, however many there are: `require_room` tells whether there is room. May be called on
        another thread than the rest; by one at a time.

        Args:
            deliver: called with every piece, during `step`.
            cancelled: asked between passes; True ends the answer with what it has.
            on_end: called with the answer, or with what the request failed with.

        Raises:
            UsageError: the prompt is empty, leaves no room in the context, or needs more KV than the budget holds.
        """
        check_prompt(request)
        budget, room = self._sequences.budget, self._room(request)
        if budget is not None and room > budget:
            raise UsageError(
                f"the prompt and the answer need room for {room} tokens and the budget is {budget}: "
                "shorten them or raise the budget"
            )
        job = Job(request, deliver, cancelled, on_end)
        self._waiting.append(job)
        self._may_begin = True
        return job

    def require_room(self, count: int = 1) -> None:
        """Raises BusyError if so many requests more are too many. A set without any takes any number."""
        taken = len(self._open) + len(self._waiting)
        if taken and taken + count > self._limits.most_open + self._limits.most_waiting:
            raise BusyError(taken, self._retry_after_s())

    def step(self, *, blocks: bool = False) -> float | None:
        """Run one pass of the answer whose turn it is.

        Args:
            blocks: where all wait for drafts, wait for the one that is due first.

        Returns:
            None after a pass; else the time until which there is nothing to do, `NEVER` without any request. A draft
            may come sooner.
        """
        self._begin_waiting()
        if not self._open:
            return NEVER
        now = self._clock()
        due, chosen = min(((each.answering.ready_at(), each) for each in self._open), key=self._turn(now))
        if due > now and not blocks:
            cancelled = next((each for each in self._open if each.job.cancelled()), None)
            if cancelled is None:
                self._idle_since = now if self._idle_since is None else self._idle_since
                return due
            chosen = cancelled
        idle_s = 0.0 if self._idle_since is None else now - self._idle_since
        self._idle_since = None
        self._run(chosen, idle_s)
        return None

    def stream(self, request: Request, cancelled: Callable[[], bool] = lambda: False) -> Generator[Piece, None, Answer]:
        """Answer a request on this thread, with all others that are open; see `add`. To close the generator ends the
        answer.
        """
        pieces: deque[Piece] = deque()
        job = self.add(request, pieces.append, cancelled)
        try:
            while job.end is None:
                self.step(blocks=True)
                while pieces:
                    yield pieces.popleft()
            return job.result()
        finally:
            self.drop(job)

    def drop(self, job: Job) -> None:
        """Forget a request, wherever it is."""
        if job in self._waiting:
            self._waiting.remove(job)
        for each in self._open:
            if each.job is job:
                self._close(each)
                break

    def fail(self, error: BaseException) -> None:
        """End all requests with this error, and forget what finished ones have left."""
        for each in list(self._open):
            each.job.finish(error)
            self._close(each)
        while self._waiting:
            self._waiting.popleft().finish(error)
        self._sequences.clear()

    def _turn(self, now: float) -> Callable[[tuple[float, _Open]], tuple[float, float, float]]:
        """Orders answers with the times at which they are ready: those that are, by device time; then the others."""

        def key(at: tuple[float, _Open]) -> tuple[float, float, float]:
            due, each = at
            return (max(due, now), max(each.start_s, self._start_s), each.start_s)

        return key

    def _begin_waiting(self) -> None:
        """Begin what there is room for, in order; what waits for a prefix that is being run lets others pass."""
        if self._may_begin:
            self._may_begin = False  # first: another request may be added meanwhile
            for job in list(self._waiting):
                if len(self._open) >= self._limits.most_open:
                    break
                if self._is_prefix_coming(job):
                    continue
                if not self._begin(job):
                    break
                self._waiting.remove(job)
        for job in [job for job in list(self._waiting) if job.cancelled()]:
            self._waiting.remove(job)
            job.finish(empty_answer(job.request, CANCELLED))

    def _is_prefix_coming(self, job: Job) -> bool:
        """Whether another prompt that begins alike is being run, so that its rows can be copied soon."""
        if not self._sequences.is_keeping:
            return False
        prompt = job.request.prompt
        prefills = [each.job.request.prompt for each in self._open if each.answering.is_prefilling]
        coming = max((shared_length(other[:-1], prompt[:-1]) for other in prefills), default=0)
        return coming >= LEAST_SHARED and coming > self._sequences.matches(prompt)

    def _begin(self, job: Job) -> bool:
        """Whether the job is open, or over."""
        began = self._clock()
        try:
            kept = self._sequences.lend(job.request.prompt, self._room(job.request))
        except Exception as error:
            job.finish(error)
            return True
        if kept is None:
            return False
        source = self._free.pop() if self._free else self._make_source()
        try:
            answering = Answering(
                self._engine,
                self._tokenizer,
                job.request,
                source,
                kept,
                self._clock,
                began,
                job.deliver,
                self._on_round,
            )
        except Exception as error:
            self._sequences.take_back(kept)
            self._free.append(source)
            job.finish(error)
        else:
            self._open.append(_Open(job, answering, source, self._start_s))
        return True

    def _run(self, chosen: _Open, idle_s: float) -> None:
        began = self._clock()
        answering, job = chosen.answering, chosen.job
        self._may_begin = self._may_begin or answering.is_prefilling
        try:
            if job.cancelled():
                answering.cancel()
            else:
                answering.step(len(self._open) - 1, idle_s)
            if answering.finish_reason is not None:
                job.finish(answering.answer())
                self._count(chosen.used_s)
        except BaseException as error:
            job.finish(error)
            if not isinstance(error, Exception):
                raise
        finally:
            took_s = self._clock() - began
            self._start_s = max(chosen.start_s, self._start_s)
            chosen.start_s = self._start_s + took_s
            chosen.used_s += took_s
            if job.end is not None:
                self._close(chosen)

    def _count(self, used_s: float) -> None:
        """An answer took the device so long."""
        self._answer_s = used_s if not self._answer_s else self._answer_s + NEWEST * (used_s - self._answer_s)

    def _close(self, over: _Open) -> None:
        self._open.remove(over)
        over.answering.close()
        self._free.append(over.source)
        self._sequences.take_back(over.answering.kept)
        self._may_begin = True
        if not self._open:
            self._on_idle()

    def _retry_after_s(self) -> int:
        """Seconds until a place in the queue is free: as many as one answer takes the device, as it was lately."""
        answer_s = self._answer_s or max((each.used_s for each in self._open), default=0.0)
        return max(LEAST_RETRY_S, min(MOST_RETRY_S, math.ceil(answer_s)))
