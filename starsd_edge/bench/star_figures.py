"""The figures of `bench star`, from the points that were run, and the predictions of the law and of the simulator for
these points, from the S and Z that were measured there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from starsd_edge.bench.figures import TIMING_BACKEND, Figure, percentile
from starsd_edge.bench.star_plan import (
    BASELINES,
    COLOCATED,
    CROWD,
    FAR_S,
    HEAD,
    LAW,
    NEAR_S,
    OURS,
    PLAIN,
    POLICY,
    PUBLISHED,
    RTT,
    SCALE,
    WRONG,
)
from starsd_edge.bench.star_runs import MeasuredPoint, Point, least_own_rate
from starsd_edge.planning.law import tokens_per_s, utilisation
from starsd_edge.planning.simulator import SimulatedStar, SimulatedTarget, jain, simulate
from starsd_edge.planning.times import SampledService, SampledTimes

_ROUNDS_PER_TARGET = 200
"""Rounds that the simulator runs for each target of a point."""


@dataclass(frozen=True)
class Expected:
    """One prediction of a point.

    Attributes:
        tokens_per_s: tokens per second of all targets together, bonus tokens included.
        utilisation: the hub's busy share.
    """

    tokens_per_s: float
    utilisation: float


def is_serial(measured: MeasuredPoint) -> bool:
    """Whether the law and the simulator apply to a point: one draft at a time, and every draft waited for."""
    point = measured.point
    return (
        point.hub is not None
        and point.hub.max_batch == 1
        and point.wait_s is not None
        and all(target.returns_s for target in measured.targets)
    )


def has_law(measured: MeasuredPoint) -> bool:
    """Whether the closed form applies to a point: it is serial, and its targets are all equal."""
    return is_serial(measured) and len(set(measured.point.links)) == 1


def law_of(measured: MeasuredPoint) -> Expected:
    """The closed form, for a point that has one: X = N E / max(S + Z, N S), U = min(1, N S / (S + Z))."""
    count, tokens = len(measured.targets), measured.tokens_per_draft
    draft_s, return_s = measured.mean_service_s, measured.mean_return_s
    system = count * tokens_per_s(tokens, draft_s, return_s, count)
    return Expected(system, utilisation(count, draft_s, return_s))


def simulated(measured: MeasuredPoint, seed: int) -> Expected:
    """The same star in the simulator, for a serial point: each target with the Z that was measured of it, the hub with
    the S of all.

    Raises:
        ModuleNotFoundError: simpy is not installed.
    """
    hub = measured.point.hub
    assert hub is not None  # noqa: S101 (a serial point has one)
    targets = [SimulatedTarget(SampledTimes(target.returns_s), target.tokens_per_draft) for target in measured.targets]
    star = SimulatedStar(targets, SampledService({1: measured.services_s}), hub.policy)
    found = simulate(star, _ROUNDS_PER_TARGET * len(targets), seed)
    return Expected(found.tokens_per_s, found.utilisation)


_FROM_KNEE = 2
"""Distance from the knee, in targets, from which on the closed form is expected to hold: near the knee, jitter matters.
"""
_POINTS = 100.0
"""Percentage points of a share of 1."""


@dataclass(frozen=True)
class StarResults:
    """All points that were run.

    Attributes:
        simulated: predictions of the simulator, for the points that it was run for.
    """

    runs: Sequence[MeasuredPoint]
    simulated: Mapping[Point, Expected] = field(default_factory=dict)

    def of(self, sweep: str, system: str | None = None) -> list[MeasuredPoint]:
        """The points of one sweep (and one system, if given), in the order in which they were run."""
        return [run for run in self.runs if run.point.sweep == sweep and system in (None, run.point.system)]

    def baseline(self, system: str) -> MeasuredPoint | None:
        """The baseline of this name."""
        return next(iter(self.of(BASELINES, system)), None)


def star_figures(results: StarResults) -> list[Figure]:
    """Every figure of the sweeps that were run."""
    parts = (_baselines, _law, _theory, _scale, _head, _rtt, _policies, _crowd, _all)
    return [Figure(name, value, unit, TIMING_BACKEND) for part in parts for name, value, unit in part(results)]


_Named = Iterator[tuple[str, float, str]]


def _baselines(results: StarResults) -> _Named:
    plain = results.baseline(PLAIN)
    if plain is None:
        return
    yield "plain_tokens_per_s", plain.per_target, "tokens/s"
    for name, system in (("colocated", COLOCATED), ("wrong_drafter", WRONG), ("rtt50_n1", OURS)):
        run = results.baseline(system)
        if run is not None:
            yield f"{name}_tokens_per_s", run.per_target, "tokens/s"
            yield f"{name}_over_plain", run.per_target / plain.per_target, ""


def _law(results: StarResults) -> _Named:
    runs = [run for run in results.of(LAW) if has_law(run)]
    if not runs:
        return
    first, last = runs[0], max(runs, key=lambda run: run.point.targets)
    draft_s, return_s = last.mean_service_s, first.mean_return_s
    knee = 1 + return_s / draft_s
    yield "law_draft_ms", 1e3 * draft_s, "ms"
    yield "law_return_ms", 1e3 * return_s, "ms"
    yield "law_knee", knee, "targets"
    yield "law_knee_measured", last.tokens_per_s / first.tokens_per_s * first.point.targets, "targets"
    yield "law_plateau_over_e_by_s", last.tokens_per_s / (last.tokens_per_draft / draft_s), ""
    away = [run for run in runs if abs(run.point.targets - knee) >= _FROM_KNEE]
    yield from _errors("law", away, law_of)
    for run in runs:
        if run.hub is not None:
            yield f"law_utilisation_n{run.point.targets}", run.hub.busy, ""
            yield f"law_idle_gap_ms_n{run.point.targets}", 1e3 * run.hub.idle / max(1e-9, run.hub.drafts_per_s), "ms"
    yield "draft_ms_variation_n1", _variation(first.services_s), ""
    yield "draft_ms_variation_full", _variation(last.services_s), ""


def _theory(results: StarResults) -> _Named:
    runs = [run for run in results.runs if run.point in results.simulated]
    yield from _errors("simulator", runs, lambda run: results.simulated[run.point])


def _errors(name: str, runs: Sequence[MeasuredPoint], predict: Callable[[MeasuredPoint], Expected]) -> _Named:
    """How far predictions are off: throughput as a share, utilisation in points."""
    if not runs:
        return
    off = [abs(predict(run).tokens_per_s / run.tokens_per_s - 1) for run in runs if run.tokens_per_s]
    points = [_POINTS * abs(predict(run).utilisation - run.hub.busy) for run in runs if run.hub is not None]
    if off:
        yield f"{name}_throughput_error_median", statistics.median(off), ""
        yield f"{name}_throughput_error_worst", max(off), ""
    if points:
        yield f"{name}_utilisation_error_worst", max(points), "points"


def _scale(results: StarResults) -> _Named:
    return _compared(results, SCALE, "n")


def _head(results: StarResults) -> _Named:
    return _compared(results, HEAD, "head_n")


def _compared(results: StarResults, sweep: str, mark: str) -> _Named:
    """Figures that compare ours with the published design."""
    published = {run.point.targets: run for run in results.of(sweep, PUBLISHED)}
    for run in results.of(sweep, OURS):
        targets = f"{mark}{run.point.targets}"
        yield f"system_tokens_per_s_{targets}", run.tokens_per_s, "tokens/s"
        yield f"per_target_tokens_per_s_{targets}", run.per_target, "tokens/s"
        yield f"tokens_per_round_{targets}", run.stats.tokens_per_round, "tokens"
        yield f"accepted_per_round_{targets}", run.stats.accepted_per_round, "tokens"
        for share in (50, 90, 99) if run.periods_s else ():
            yield f"round_ms_p{share}_{targets}", 1e3 * percentile(run.periods_s, share / 100), "ms"
        if run.point.targets in published:
            other = published[run.point.targets]
            yield f"published_tokens_per_s_{targets}", other.tokens_per_s, "tokens/s"
            yield f"published_tokens_per_round_{targets}", other.stats.tokens_per_round, "tokens"
            yield f"published_accepted_per_round_{targets}", other.stats.accepted_per_round, "tokens"
            yield f"system_over_published_{targets}", _ratio(run.tokens_per_s, other.tokens_per_s), ""


def _rtt(results: StarResults) -> _Named:
    runs = {(run.point.targets, run.point.links[0].rtt_s): run for run in results.of(RTT)}
    for targets in sorted({targets for targets, _ in runs}):
        near, far = runs.get((targets, NEAR_S)), runs.get((targets, FAR_S))
        if near is not None and far is not None:
            name = "rtt50_over_rtt1" if targets > 1 else "rtt50_over_rtt1_n1"
            yield name, _ratio(far.tokens_per_s, near.tokens_per_s), ""
            if targets > 1:
                yield f"{name}_targets", float(targets), "targets"


def _policies(results: StarResults) -> _Named:
    for run in results.of(POLICY):
        policy = run.point.hub.policy if run.point.hub else ""
        alone = [run.mean_service_s + statistics.fmean(target.returns_s or [0.0]) for target in run.targets]
        yield f"jain_{policy}", jain(run.draft_shares), ""
        yield f"least_own_rate_{policy}", least_own_rate(run, alone), ""
        yield f"starved_{policy}", float(sum(not target.services_s for target in run.targets)), "targets"


def _crowd(results: StarResults) -> _Named:
    for run in results.of(CROWD):
        yield "crowd_sessions", float(len(run.targets)), "sessions"
        yield "crowd_dropped", float(sum(not target.stats.rounds for target in run.targets)), "sessions"
        yield "crowd_tokens_per_s", run.tokens_per_s, "tokens/s"
        if run.process is not None:
            yield "crowd_memory_growth", run.process.memory_growth, ""
            yield "crowd_loop_lag_ms_p99", run.process.loop_lag_ms_p99, "ms"


def _all(results: StarResults) -> _Named:
    waited = [run.hub.lag for run in results.of(LAW) if run.hub is not None]
    if waited:
        yield "idle_while_work_waits", max(waited), ""
    yield "inexact_answers", float(sum(run.inexact for run in results.runs)), "answers"
    stats = [run.stats for run in results.runs if run.point.hub is not None]
    rounds = sum(each.rounds for each in stats)
    if rounds:
        yield "bytes_up_per_round", sum(each.bytes_up for each in stats) / rounds, "B"
        yield "bytes_down_per_round", sum(each.bytes_down for each in stats) / rounds, "B"


def _variation(samples: Sequence[float]) -> float:
    """Coefficient of variation of these samples: standard deviation over mean."""
    return statistics.pstdev(samples) / statistics.fmean(samples) if samples and statistics.fmean(samples) else 0.0


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0
