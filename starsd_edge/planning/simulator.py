"""The star as a discrete-event simulation: N targets that each wait for a draft, verify it and ask again.

A target has one request outstanding. The hub never idles while one waits; which requests it drafts for next, and which
of them together, is decided by the scheduler that a real hub runs. All that a target does between a draft and its next
request is its return time Z. Each target and the hub draw from random numbers of their own, so that two orders meet the
same star.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from starsd_edge.planning.times import ServiceTimes, Times
from starsd_edge.protocol.hub_side import QueueDraft
from starsd_edge.scheduling.policies import FIFO, KeyTerms, Policy, Waiting
from starsd_edge.scheduling.scheduler import POLICIES, PROMOTED_AFTER_S, Scheduler
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from simpy import Environment, Event

    Process = Generator[Event, object, None]

ONE_CHAIN = DraftShape(1, 1)
"""Shape of every draft where service times do not depend on the shape."""
_WARM_UP = 0.1
"""Rounds of the warm-up as a share of those that are counted."""


@dataclass(frozen=True)
class SimulatedTarget:
    """One target.

    Attributes:
        returns: Z in seconds, from the hub's sending a draft to the next request.
        tokens: E, tokens of a round with the bonus token.
        shape: shape of its drafts.
        weight: its share of the hub with `drr`, relative to other targets.
    """

    returns: Times
    tokens: float = 1.0
    shape: DraftShape = ONE_CHAIN
    weight: float = 1.0


@dataclass(frozen=True)
class SimulatedStar:
    """The star that is simulated.

    Attributes:
        service: S(b, shape).
        order: name of a policy, or one made for this run.
        max_batch: most requests in one pass of the drafter.
        promoted_after_s: see `Scheduler`.
    """

    targets: Sequence[SimulatedTarget]
    service: ServiceTimes
    order: str | Policy = FIFO
    max_batch: int = 1
    promoted_after_s: float = PROMOTED_AFTER_S


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of durations in seconds; 0 where there were none."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """The percentiles of these durations."""
        return cls(*(float(each) for each in np.percentile(seconds, (50, 90, 99)))) if seconds else cls(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TargetResult:
    """Results of one simulated target.

    Attributes:
        of_ideal: its rounds per second, as a share of those it would have with the hub to itself.
        draft_s: the drafter's time that went to it; of a batch, its share.
        waits: seconds from each request to the beginning of its draft.
        rounds: seconds from each request to the next.
    """

    rounds_per_s: float
    tokens_per_s: float
    of_ideal: float
    draft_s: float
    waits: Percentiles
    rounds: Percentiles


@dataclass(frozen=True)
class StarResult:
    """The whole star, over `seconds` of simulated time after a warm-up.

    Attributes:
        utilisation: the hub's busy share.
        idle_gaps: number of times that the hub had nothing to do.
        idle_gap_s: their mean length in seconds.
        mean_batch: mean number of requests in a pass.
        jain: Jain's index over the targets' rounds per second: 1 where all are equal, 1 / N where one has all.
        jain_draft: Jain's index over the drafter's time that each target was given, divided by its weight.
    """

    seconds: float
    rounds_per_s: float
    tokens_per_s: float
    utilisation: float
    idle_gaps: int
    idle_gap_s: float
    mean_batch: float
    waits: Percentiles
    rounds: Percentiles
    jain: float
    jain_draft: float
    targets: Sequence[TargetResult]


def simulate(star: SimulatedStar, rounds: int, seed: int) -> StarResult:
    """Run a star until about `rounds` rounds were counted, all targets together.

    Args:
        rounds: after a warm-up of a tenth as many.

    Raises:
        ValueError: there is nothing to simulate.
    """
    from simpy import Environment

    if not star.targets or rounds < 1 or star.max_batch < 1:
        raise ValueError("a simulation needs a target, a round and room for a request in a batch")
    seconds = rounds * _round_estimate_s(star) / len(star.targets)
    if seconds <= 0:
        raise ValueError("a simulation needs rounds that take time")
    run = _Run(star, Environment(), seed, seconds * _WARM_UP)
    return run.until(seconds * (1 + _WARM_UP))


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index of these shares: 1 where all are equal, 1 / N where one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _round_estimate_s(star: SimulatedStar) -> float:
    """About the seconds of one round of a target: by the law, from the means, without the time that batches save."""
    most = star.max_batch
    service_s = [star.service.mean_s([target.shape]) for target in star.targets]
    together_s = [star.service.mean_s([target.shape] * most) / most for target in star.targets]
    alone_s = [draft + target.returns.mean_s for draft, target in zip(service_s, star.targets, strict=True)]
    if min(alone_s) <= 0:
        return 0.0
    return max(len(alone_s) / sum(1 / each for each in alone_s), sum(together_s))


def _policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise ValueError(f"no order {name!r}: one of {', '.join(POLICIES)}")
    return POLICIES[name]()


@dataclass
class _TargetCounts:
    """What one target did while it was counted."""

    waits_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    draft_s: float = 0.0


class _Run:
    def __init__(self, star: SimulatedStar, env: Environment, seed: int, counted_from: float) -> None:
        self._star = star
        self._env = env
        self._counted_from = counted_from
        self._hub_random = Random(f"{seed} hub")  # noqa: S311
        self._records = [_TargetCounts() for _ in star.targets]
        self._waiting: dict[int, tuple[Waiting, Event]] = {}
        self._asked: Event | None = None
        self._busy_s = 0.0
        self._batches: list[int] = []
        self._gaps_s: list[float] = []
        self._scheduler = self._scheduler_of(star)
        for number in range(len(star.targets)):
            env.process(self._target(number, Random(f"{seed} {number}")))  # noqa: S311
        env.process(self._hub())

    @staticmethod
    def _scheduler_of(star: SimulatedStar) -> Scheduler:
        return Scheduler(
            star.order if not isinstance(star.order, str) else _policy_named(star.order),
            {str(number): KeyTerms(target.weight) for number, target in enumerate(star.targets)},
            lambda drafter, shape: star.service.mean_s([shape]),
            lambda number: star.targets[number].returns.mean_s,
            star.promoted_after_s,
        )

    def until(self, end: float) -> StarResult:
        """Run, and sum up."""
        self._env.run(until=end)
        return self._result(end - self._counted_from)

    def _target(self, number: int, random: Random) -> Process:
        target, record = self._star.targets[number], self._records[number]
        draft_s = self._star.service.mean_s([target.shape])
        yield self._env.timeout(random.random() * (target.returns.mean_s + draft_s))
        while True:
            asked_at = self._env.now
            drafted = self._env.event()
            request = QueueDraft(number, 0, 0, target.shape, asked_at, str(number))
            self._waiting[number] = self._scheduler.admit(request, "", None), drafted
            if self._asked is not None:
                self._asked.succeed()
                self._asked = None
            yield drafted
            yield self._env.timeout(target.returns.draw(random))
            if self._env.now >= self._counted_from:
                record.rounds_s.append(self._env.now - asked_at)

    def _hub(self) -> Process:
        while True:
            if not self._waiting:
                idle_from = self._env.now
                self._asked = self._env.event()
                yield self._asked
                if self._env.now > self._counted_from:
                    self._gaps_s.append(self._env.now - max(idle_from, self._counted_from))
            batch = self._take_batch()
            began = self._env.now
            shapes = [waiting.request.shape for waiting, _ in batch]
            yield self._env.timeout(self._star.service.draw(shapes, self._hub_random))
            self._book(batch, began)
            for _, drafted in batch:
                drafted.succeed()

    def _take_batch(self) -> list[tuple[Waiting, Event]]:
        ready = [waiting for waiting, _ in self._waiting.values()]
        batch = self._scheduler.take_batch(ready, self._env.now, self._star.max_batch)
        return [self._waiting.pop(waiting.session) for waiting in batch]

    def _book(self, batch: Sequence[tuple[Waiting, Event]], began: float) -> None:
        draft_s = self._env.now - began
        self._scheduler.spent([waiting.session for waiting, _ in batch], draft_s)
        if self._env.now < self._counted_from:
            return
        self._busy_s += self._env.now - max(began, self._counted_from)
        self._batches.append(len(batch))
        for waiting, _ in batch:
            record = self._records[waiting.session]
            record.draft_s += draft_s / len(batch)
            record.waits_s.append(began - waiting.arrived)

    def _result(self, seconds: float) -> StarResult:
        targets = [self._target_result(number, seconds) for number in range(len(self._records))]
        return StarResult(
            seconds=seconds,
            rounds_per_s=sum(target.rounds_per_s for target in targets),
            tokens_per_s=sum(target.tokens_per_s for target in targets),
            utilisation=min(1.0, self._busy_s / seconds),
            idle_gaps=len(self._gaps_s),
            idle_gap_s=sum(self._gaps_s) / len(self._gaps_s) if self._gaps_s else 0.0,
            mean_batch=sum(self._batches) / len(self._batches) if self._batches else 0.0,
            waits=Percentiles.of([wait for record in self._records for wait in record.waits_s]),
            rounds=Percentiles.of([each for record in self._records for each in record.rounds_s]),
            jain=jain([target.rounds_per_s for target in targets]),
            jain_draft=jain(
                [result.draft_s / target.weight for result, target in zip(targets, self._star.targets, strict=True)]
            ),
            targets=targets,
        )

    def _target_result(self, number: int, seconds: float) -> TargetResult:
        target, record = self._star.targets[number], self._records[number]
        rounds_per_s = len(record.rounds_s) / seconds
        alone_s = self._star.service.mean_s([target.shape]) + target.returns.mean_s
        return TargetResult(
            rounds_per_s=rounds_per_s,
            tokens_per_s=rounds_per_s * target.tokens,
            of_ideal=rounds_per_s * alone_s,
            draft_s=record.draft_s,
            waits=Percentiles.of(record.waits_s),
            rounds=Percentiles.of(record.rounds_s),
        )
