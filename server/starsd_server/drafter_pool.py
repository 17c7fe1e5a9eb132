"""What the drafting thread does, one piece of work at a time, and what comes of it. No threads here, and no waiting.

A drafter that raises costs the session that it raised for and nothing else, also where several are drafted for
together. One that cannot be made ready, or that keeps failing, is reported as such.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starsd_edge.protocol.hub_side import OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftTree
from starsd_server.draft_queue import Absorb, Batch, Begin, End, Work
from starsd_server.drafters.contract import Drafter, DraftOutcome, Failures, SessionRefusedError, extend_one

log = logging.getLogger(__name__)

FAILING_AFTER = 3
"""Failures in a row, of any sessions, after which a drafter is reported as failing: fewer may be the fault of one
session.
"""


@dataclass(frozen=True)
class Warm:
    """A drafter is ready."""

    drafter: str


@dataclass(frozen=True)
class Broken:
    """A drafter could not be warmed up, and drafts for nobody."""

    drafter: str
    why: str


@dataclass(frozen=True)
class Drafted:
    """A tree for the request of this epoch.

    Attributes:
        base_len: position of the token that the drafter hung it from.
        queue_us: microseconds from the arrival of the request to the beginning of the drafter's pass.
        service_us: microseconds of that pass: of the whole batch, with the rows that came with it.
    """

    session: int
    epoch: int
    base_len: int
    tree: DraftTree
    queue_us: int
    service_us: int


@dataclass(frozen=True)
class DraftFailed:
    """The drafter failed for this session, which is given up; epoch 0 when nothing had been asked."""

    session: int
    epoch: int
    message: str


Outcome = Warm | Broken | Drafted | DraftFailed


@dataclass(frozen=True)
class Done:
    """The results of a piece of work.

    Attributes:
        outcomes: results for the targets.
        work: the work that was done; None for a warm-up.
        drafter: name of the drafter that did it; "" where none did, because the session was given up before.
        service_s: seconds in the drafter.
    """

    outcomes: tuple[Outcome, ...]
    work: Work | None = None
    drafter: str = ""
    service_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing failed, so that the time may count as the cost of such work."""
        return not any(isinstance(outcome, DraftFailed) for outcome in self.outcomes)


@dataclass
class DrafterHealth:
    """Counters of one drafter; the drafting thread writes, others read.

    Attributes:
        sessions: sessions open now.
        passes: runs in which it drafted, for one session or several at once.
        failures: sessions lost to an error of the drafter.
        failures_in_a_row: sessions lost since it last did its work.
        refusals: sessions that it did not serve although it works (it is full, or cannot take their rows).
        last_error: class name of the last error.
        broken: why it cannot draft for anybody, since it could not be warmed up; "" where it can.
    """

    kind: str
    warm: bool = False
    sessions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    rows: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    refusals: int = 0
    last_error: str = ""
    passes: int = 0
    broken: str = ""

    @property
    def failing(self) -> bool:
        """Whether it has failed `FAILING_AFTER` times in a row."""
        return self.failures_in_a_row >= FAILING_AFTER


class DrafterPool:
    """What the drafting thread does, one piece of work at a time; no threads, no waiting."""

    def __init__(self, drafters: Sequence[Drafter], clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds, the one that stamped `QueueDraft.received_at`."""
        self._drafters = {drafter.kind: drafter for drafter in drafters}
        self._clock = clock
        self._bound: dict[int, Drafter] = {}
        self.health: Mapping[str, DrafterHealth] = {kind: DrafterHealth(kind) for kind in self._drafters}

    def warm_up(self, kind: str) -> Warm | Broken:
        """Make a drafter ready, or find that it cannot be, with a line in the log."""
        health = self.health[kind]
        try:
            self._drafters[kind].warm_up()
        except Exception as error:  # an unusable drafter must not take the hub down: it says so in /status
            self._count_failure(health, error)
            health.failures_in_a_row = FAILING_AFTER
            health.broken = f"it could not be warmed up ({type(error).__name__})"
            return Broken(kind, health.broken)
        health.warm = True
        return Warm(kind)

    def do(self, work: Work) -> Done:
        """Do one piece of work."""
        drafter = self._drafter_of(work)
        if drafter is None:  # given up before: what still comes for it is passed over
            return Done((), work)
        began = self._clock()
        outcomes = self._draft(drafter, work, began) if isinstance(work, Batch) else self._prepare(drafter, work)
        return Done(tuple(outcomes), work, drafter.kind, self._clock() - began)

    def _drafter_of(self, work: Work) -> Drafter | None:
        if isinstance(work, Begin):
            return self._drafters[work.opening.drafter]
        if isinstance(work, Absorb):
            return self._bound.get(work.rows.session)
        if isinstance(work, End):
            return self._bound.get(work.session)
        bound = (self._bound.get(answer.request.session) for answer in work.answers)
        return next((drafter for drafter in bound if drafter is not None), None)

    def _prepare(self, drafter: Drafter, work: Begin | Absorb | End) -> list[Outcome]:
        """Do work that needs no answer: begin a session, take in rows, end a session."""
        try:
            if isinstance(work, Absorb):
                self._absorb(drafter, work.rows)
            elif isinstance(work, Begin):
                self._begin(drafter, work.opening)
            else:
                self._end(drafter, work.session)
        except Exception as error:  # whatever a drafter raises ends one session and no more
            session = _whose(work)
            return [DraftFailed(session, 0, self._give_up(session, drafter, error))]
        return []

    def _draft(self, drafter: Drafter, batch: Batch, began: float) -> list[Outcome]:
        """Draft for the whole batch in one pass; only sessions that fail are lost."""
        answers = [answer for answer in batch.answers if answer.request.session in self._bound]
        failures = dict(self._absorb_all(drafter, [answer.rows for answer in answers if answer.rows is not None]))
        going = [answer.request for answer in answers if answer.request.session not in failures]
        drafted = self._together(drafter, self._rooted(drafter, going, failures))
        failed = [
            (answer.request, failures[answer.request.session])
            for answer in answers
            if answer.request.session in failures
        ]
        failed += [(request, outcome) for request, outcome in drafted if isinstance(outcome, Exception)]
        outcomes: list[Outcome] = [
            DraftFailed(request.session, request.epoch, self._give_up(request.session, drafter, error))
            for request, error in failed
        ]
        service_us = _microseconds(self._clock() - began)
        return outcomes + [
            Drafted(
                request.session,
                request.epoch,
                request.base_len,
                tree,
                queue_us=_microseconds(began - request.received_at),
                service_us=service_us,
            )
            for request, tree in drafted
            if isinstance(tree, DraftTree)
        ]

    def _rooted(
        self, drafter: Drafter, requests: Sequence[QueueDraft], failures: dict[int, Exception]
    ) -> list[QueueDraft]:
        """Those requests whose root the drafter stands at. A tree for another would hang from the wrong token: such a
        session joins the failures.
        """
        rooted = []
        for request in requests:
            try:
                held = drafter.base_len(request.session)
            except Exception as error:
                failures[request.session] = error
                continue
            if held == request.base_len:
                rooted.append(request)
            else:
                failures[request.session] = RuntimeError(
                    f"it stands at position {held} of a text, and a draft was asked for at {request.base_len}"
                )
        return rooted

    def _absorb_all(self, drafter: Drafter, batch: Sequence[NewRows]) -> Failures:
        """Take in rows of several sessions in one pass. If that raises, all these sessions are lost: it is not known
        which of them have their rows.
        """
        if not batch:
            return {}
        try:
            failures = drafter.extend(batch)
        except Exception as error:
            return {rows.session: error for rows in batch}
        self.health[drafter.kind].rows += sum(len(rows.ids) for rows in batch if rows.session not in failures)
        return failures

    def _together(self, drafter: Drafter, requests: Sequence[QueueDraft]) -> list[tuple[QueueDraft, DraftOutcome]]:
        """An outcome for each: of one pass, or where it raises, of one for each; drafting again changes nothing."""
        if not requests:
            return []
        try:
            outcomes = drafter.draft([request.session for request in requests], [request.shape for request in requests])
        except Exception as error:
            if len(requests) == 1:
                return [(requests[0], error)]
            log.debug("drafter %s: %s in a batch of %d", drafter.kind, type(error).__name__, len(requests))
            return [outcome for request in requests for outcome in self._together(drafter, [request])]
        self._count_pass(drafter, [outcome for outcome in outcomes if isinstance(outcome, DraftTree)])
        return list(zip(requests, outcomes, strict=True))

    def _count_pass(self, drafter: Drafter, trees: Sequence[DraftTree]) -> None:
        health = self.health[drafter.kind]
        health.passes += 1
        health.drafts += len(trees)
        health.draft_tokens += sum(len(tree) for tree in trees)
        if trees:
            health.failures_in_a_row = 0

    def _begin(self, drafter: Drafter, opening: OpenSession) -> None:
        self._bound[opening.session] = drafter
        self.health[drafter.kind].sessions += 1
        drafter.open(opening.session, opening.first_row, opening.t_first)

    def _absorb(self, drafter: Drafter, rows: NewRows) -> None:
        extend_one(drafter, rows)
        self.health[drafter.kind].rows += len(rows.ids)

    def _end(self, drafter: Drafter, session: int) -> None:
        if self._bound.pop(session, None) is not None:
            self.health[drafter.kind].sessions -= 1
            drafter.close(session)

    def _give_up(self, session: int, drafter: Drafter, error: Exception) -> str:
        """Free the state of a failed session; returns the line that its target is told."""
        health = self.health[drafter.kind]
        if isinstance(error, SessionRefusedError):
            health.refusals += 1
            message = str(error)
        else:
            self._count_failure(health, error)
            message = f"the {drafter.kind} drafter failed ({type(error).__name__}): the hub's log says more"
        try:
            self._end(drafter, session)
        except Exception as second:
            self._count_failure(health, second)
        return message

    def _count_failure(self, health: DrafterHealth, error: Exception) -> None:
        health.failures += 1
        health.failures_in_a_row += 1
        health.last_error = type(error).__name__
        first = health.failures_in_a_row == 1
        log.error(
            "drafter %s failed: %s: %s", health.kind, type(error).__name__, error, exc_info=error if first else None
        )


def _whose(work: Begin | Absorb | End) -> int:
    """The session that a failure of this work is reported for."""
    if isinstance(work, Begin):
        return work.opening.session
    return work.rows.session if isinstance(work, Absorb) else work.session


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
