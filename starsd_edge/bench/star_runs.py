"""One point of a star sweep: its plan, the measurements of its run, and the figures that follow from them. Pure.

Times are in seconds on one clock, that of the targets. S is the hub's time in the drafter for a request. Z is the time
from the hub's sending a draft to that target's next request: verifying, the network, and between two texts the prefill.
E is the number of tokens that a target gains for each draft, those that it chose without one included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from starsd_edge.bench.device_times import LinkTimes, ModelDraftTimes
from starsd_edge.scheduling.policies import FIFO
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.hub_facts import HubFacts
from starsd_edge.telemetry.rounds import Round, RoundStats

WAIT_ALWAYS_S = 10.0
"""Wait in seconds of a target that waits for every draft, as in the published design."""


@dataclass(frozen=True)
class HubPlan:
    """How a hub is started.

    Attributes:
        policy: policy of its scheduler.
        max_batch: most sessions of one pass.
        shape: shape of all drafts, within what targets ask for; None leaves it to the hub.
        times: least seconds of a pass; None leaves them to the drafter.
        wrong: draft tokens are replaced by tokens that no text holds, so that none is ever accepted.
    """

    policy: str = FIFO
    max_batch: int = 1
    shape: DraftShape | None = None
    times: ModelDraftTimes | None = None
    wrong: bool = False


@dataclass(frozen=True)
class Point:
    """One star to run.

    Attributes:
        sweep: name of the sweep that the point is part of.
        system: name of the system that is run: `OURS`, `PUBLISHED`, ...
        hub: how the hub is started; None for targets that decode by themselves.
        links: one link for each target.
        shape: largest draft.
        wait_s: how long a target waits for a draft; None leaves it to the target.
        sessions: number of sessions on each target's connection.
    """

    sweep: str
    system: str
    hub: HubPlan | None
    links: tuple[LinkTimes, ...]
    shape: DraftShape
    wait_s: float | None = WAIT_ALWAYS_S
    sessions: int = 1

    @property
    def targets(self) -> int:
        """N, the number of targets."""
        return len(self.links)


@dataclass(frozen=True)
class DraftMark:
    """A draft that a target took in.

    Attributes:
        queue_s: seconds from the hub's receiving the request to the beginning of its draft.
        service_s: S, seconds in the drafter.
    """

    asked_at: float
    queue_s: float
    service_s: float


@dataclass
class TargetLog:
    """What one target has done so far."""

    rounds: list[tuple[float, Round]] = field(default_factory=list)
    """Finished rounds, each with the time of its end."""
    drafts: list[DraftMark] = field(default_factory=list)
    answers: int = 0
    inexact: int = 0
    """Number of answers that are not the recorded text."""


@dataclass(frozen=True)
class TargetSeen:
    """One target within the window of time that counts.

    Attributes:
        tokens_per_s: tokens per second from the end of its first round in the window to the end of its last.
        periods_s: seconds from the end of one round to the end of the next.
        services_s: S of each draft.
        returns_s: Z of each draft but the last.
        tokens_per_draft: E, tokens that the target gained for each draft.
    """

    tokens_per_s: float
    stats: RoundStats
    periods_s: Sequence[float]
    services_s: Sequence[float]
    returns_s: Sequence[float]
    tokens_per_draft: float = 0.0


@dataclass(frozen=True)
class HubUse:
    """The hub's use of time over the window.

    Attributes:
        busy, idle, lag: shares of the time in a drafter, without work, and not at work while work waited.
        drafts_per_s, passes_per_s: drafts and passes of the drafter per second.
        busy_s_per_draft: the drafting thread's time for each draft, prefill included.
    """

    busy: float
    idle: float
    lag: float
    drafts_per_s: float
    passes_per_s: float
    busy_s_per_draft: float

    @classmethod
    def between(cls, before: HubFacts, after: HubFacts) -> HubUse:
        """From the facts at the window's beginning and end."""
        busy_s = after.time.busy_s - before.time.busy_s
        idle_s = after.time.idle_s - before.time.idle_s
        lag_s = after.time.lag_s - before.time.lag_s
        total_s = max(1e-9, busy_s + idle_s + lag_s)
        drafts, passes = (_sum_of(after, name) - _sum_of(before, name) for name in ("drafts", "passes"))
        return cls(
            busy_s / total_s,
            idle_s / total_s,
            lag_s / total_s,
            drafts / total_s,
            passes / total_s,
            busy_s / max(1, drafts),
        )


@dataclass(frozen=True)
class HubProcess:
    """Memory and event loop of the hub's process.

    Attributes:
        memory_growth: growth of its resident memory over the second half of the window, as a share.
        loop_lag_ms_p99: 99th percentile of the milliseconds by which its event loop ran later than asked for.
    """

    memory_growth: float
    loop_lag_ms_p99: float


@dataclass(frozen=True)
class MeasuredPoint:
    """The measurements of a point.

    Attributes:
        targets: what each session did.
        hub: the hub's use of time; None without a hub.
        inexact: number of answers that were not the recorded text.
        process: figures of the hub's process; None where they were not taken.
    """

    point: Point
    targets: Sequence[TargetSeen]
    hub: HubUse | None
    inexact: int = 0
    process: HubProcess | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all targets together."""
        return sum(target.tokens_per_s for target in self.targets)

    @property
    def per_target(self) -> float:
        """Mean tokens per second of one target."""
        return self.tokens_per_s / len(self.targets)

    @property
    def stats(self) -> RoundStats:
        """Sums over the rounds of all targets."""
        stats = RoundStats()
        for target in self.targets:
            stats.merge(target.stats)
        return stats

    @property
    def services_s(self) -> list[float]:
        """S of every draft, in seconds."""
        return [each for target in self.targets for each in target.services_s]

    @property
    def returns_s(self) -> list[float]:
        """Z of every draft, in seconds."""
        return [each for target in self.targets for each in target.returns_s]

    @property
    def periods_s(self) -> list[float]:
        """Seconds of every round, from the end of one to the end of the next."""
        return [each for target in self.targets for each in target.periods_s]

    @property
    def mean_service_s(self) -> float:
        """Mean S in seconds; 0 without a hub."""
        return statistics.fmean(self.services_s or [0.0])

    @property
    def mean_return_s(self) -> float:
        """Mean Z in seconds; 0 without a hub."""
        return statistics.fmean(self.returns_s or [0.0])

    @property
    def tokens_per_draft(self) -> float:
        """E, mean tokens for each draft; 0 without a hub."""
        drafts = len(self.services_s)
        return sum(each.tokens_per_draft * len(each.services_s) for each in self.targets) / drafts if drafts else 0.0

    @property
    def draft_shares(self) -> list[float]:
        """For each target, the drafter's seconds that went into its drafts."""
        return [sum(target.services_s) for target in self.targets]


def written_shape(shape: DraftShape) -> str:
    """A draft shape as users write it."""
    return f"{shape.max_nodes}x{shape.max_depth}x{shape.branching}"


def seen_between(log: TargetLog, began: float, ended: float) -> TargetSeen:
    """What one target did in a window of time; rounds count by their end."""
    rounds = [(at, done) for at, done in log.rounds if began <= at < ended]
    stats = RoundStats()
    for _, done in rounds:
        stats.add(done)
    span_s = rounds[-1][0] - rounds[0][0] if len(rounds) > 1 else 0.0
    tokens_per_s = sum(done.emitted for _, done in rounds[1:]) / span_s if span_s else 0.0
    drafts = [mark for mark in log.drafts if began <= mark.asked_at < ended]
    return TargetSeen(
        tokens_per_s=tokens_per_s,
        stats=stats,
        periods_s=[later - earlier for (earlier, _), (later, _) in pairwise(rounds)],
        services_s=[mark.service_s for mark in drafts],
        returns_s=[
            max(0.0, later.asked_at - one.asked_at - one.queue_s - one.service_s) for one, later in pairwise(drafts)
        ],
        tokens_per_draft=tokens_per_s * (drafts[-1].asked_at - drafts[0].asked_at) / (len(drafts) - 1)
        if len(drafts) > 1
        else 0.0,
    )


def least_own_rate(measured: MeasuredPoint, periods_s: Sequence[float]) -> float:
    """The smallest share that a target has of the rate it would have with the hub for itself.

    Args:
        periods_s: for each target, the seconds of a round with the hub to itself: S + Z.
    """
    return min(
        periods_s[index] * len(target.services_s) / max(1e-9, sum(target.periods_s))
        for index, target in enumerate(measured.targets)
    )


def _sum_of(facts: HubFacts, name: str) -> int:
    return sum(getattr(drafter, name) for drafter in facts.drafters)
