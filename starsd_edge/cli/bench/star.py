"""`starsd-edge bench star`: a star of replayed targets around a real hub, against baselines and theory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import msgspec

from starsd_edge.bench.device_times import LinkTimes, ModelDraftTimes, ModelPassTimes
from starsd_edge.bench.figures import BenchReport, describe_machine, write_report
from starsd_edge.bench.star_figures import Expected, StarResults, is_serial, simulated, star_figures
from starsd_edge.bench.star_plan import (
    CROWD,
    HEAD,
    POLICY,
    QUICK_SWEEPS,
    SCALE,
    SWEEPS,
    StarSettings,
    points_of,
)
from starsd_edge.bench.star_report import point_rows, star_markdown
from starsd_edge.bench.star_runs import HubPlan, HubUse, MeasuredPoint, Point, seen_between, written_shape
from starsd_edge.bench.trace import Traces
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.cli.bench.options import BenchStarOptions
from starsd_edge.cli.bench.star_probe import HubWatcher
from starsd_edge.cli.bench.star_targets import ReplayCrowd, ReplaySetup, replay_setup
from starsd_edge.cli.bench.timing_hub import PROGRAM
from starsd_edge.cli.shared_options import AUTO
from starsd_edge.errors import UsageError, remedy_of
from starsd_edge.hub_process import hub_process, read_status
from starsd_edge.speculation.tree import DraftShape

_MAX_SESSIONS = 8192


class StarHubs:
    """Starts a hub when it is first needed and keeps it; one that nobody uses costs nothing. A context manager.

    Args:
        draft: the draft bundle; None for n-grams.
        wrong_ids: tokens that no text holds.
    """

    def __init__(self, draft: Path | None, wrong_ids: Sequence[int], program: Sequence[str] = PROGRAM) -> None:
        self._draft = draft
        self._wrong_ids = wrong_ids
        self._program = program
        self._stack = ExitStack()
        self._urls: dict[HubPlan, str] = {}

    def __enter__(self) -> StarHubs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def url(self, plan: HubPlan) -> str:
        """The address of a hub that is as planned.

        Raises:
            StarsdError: it does not start.
        """
        if plan not in self._urls:
            arguments = hub_arguments(plan, self._draft, self._wrong_ids)
            self._urls[plan] = self._stack.enter_context(hub_process(arguments, self._program))
        return self._urls[plan]


def hub_arguments(plan: HubPlan, draft: Path | None, wrong_ids: Sequence[int]) -> list[str]:
    """What the hub's process is told."""
    options: Mapping[str, object] = {
        "--threads": 1,
        "--max-sessions": _MAX_SESSIONS,
        "--resume-grace": 1,
        "--policy": plan.policy,
        "--max-batch": plan.max_batch,
        "--draft-shape": AUTO if plan.shape is None else f"fixed:{written_shape(plan.shape)}",
        **({} if plan.times is None else _modelled(plan.times)),
        **({"--wrong-ids": ",".join(map(str, wrong_ids))} if plan.wrong else {}),
    }
    written = [word for name, value in options.items() for word in (name, str(value))]
    return [*([] if draft is None else [str(draft), "--require-drafter"]), *written]


def _modelled(times: ModelDraftTimes) -> dict[str, object]:
    return {"--draft-ms": 1e3 * times.one_s, "--draft-growth": times.growth, "--draft-levels": times.levels}


_SWITCH_INTERVAL_S = 0.0005
"""Seconds that one decode loop may hold the interpreter while others wait for it: the same as on a hub."""
_ROUNDS_TIMEOUT_S = 60.0
"""Seconds within which every target does the rounds that are waited for."""
_LEAST_ROUNDS = 4
"""Least rounds of each target at a point: fewer have no mean worth the name."""
_SETTLING_S = 4.0
"""Seconds before a star is measured that chooses draft sizes and waits by itself: it learns its cost model meanwhile.
"""
_HALF = 0.5
_LONGER = 2
"""Factor on the seconds of a point with so many targets that each does few rounds."""
_MOST_LONGER = 4
"""Largest factor on the seconds of a point with so few targets that the figures would depend on their present texts."""
_ENOUGH_TARGETS = 8
"""Targets from which on the figures of a point do not depend on the texts that they are at."""
_WRONG_IDS = 16
_MIB = 1e6


@dataclass(frozen=True)
class StarOutcome:
    """What came of it.

    Attributes:
        notes: for the reader: what was not measured and why.
    """

    report: BenchReport
    results: StarResults
    notes: Sequence[str]

    @property
    def inexact(self) -> int:
        """Answers that were not the recorded texts."""
        return sum(run.inexact for run in self.results.runs)


class StarBench:
    """One run of the command.

    Args:
        progress: told of each step.
    """

    def __init__(self, options: BenchStarOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._settings = _settings(options)
        self._notes: list[str] = []

    def run(self) -> StarOutcome:
        """Measure.

        Raises:
            StarsdError: something cannot be opened, or the targets do not get going.
        """
        machine = describe_machine(("onnxruntime", "numpy", "websockets"))
        setup = self._open()
        draft = None if self._options.draft is None else find_bundle(self._options.draft)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            wrong_ids = _unused_ids(setup.traces, setup.tokenizer.size)
            with StarHubs(draft, wrong_ids) as hubs:
                runs = [self._run(setup, hubs, point) for point in self._points(bool(wrong_ids))]
        finally:
            sys.setswitchinterval(interval_s)
        results = StarResults(runs, self._simulated(runs))
        report = BenchReport(star_figures(results), machine, self._described(setup.traces))
        return StarOutcome(report, results, self._notes)

    def _open(self) -> ReplaySetup:
        options = self._options
        verify = ModelPassTimes(options.verify_ms / 1e3, options.verify_growth, options.verify_jitter)
        return replay_setup(options.bundle, options.trace, verify, options.seed)

    def _points(self, can_be_wrong: bool) -> Iterator[Point]:
        """What to run, one after the other, telling of each."""
        sweeps = [sweep.value for sweep in self._options.only] or (QUICK_SWEEPS if self._options.quick else SWEEPS)
        points = [point for sweep in sweeps for point in points_of(sweep, self._settings)]
        if not can_be_wrong:
            self._notes.append("no wrong drafter: the texts use every token that there is")
            points = [point for point in points if point.hub is None or not point.hub.wrong]
        for number, point in enumerate(points, 1):
            self._progress(f"{number} of {len(points)}: {_title(point)}")
            yield point

    def _run(self, setup: ReplaySetup, hubs: StarHubs, point: Point) -> MeasuredPoint:
        """One point: warm up, then count for a while."""
        url = None if point.hub is None else hubs.url(point.hub)
        with ReplayCrowd(setup, point, url) as crowd, ExitStack() as stack:
            # Policies that starve targets are among those that are compared.
            share = _HALF if point.sweep == POLICY else 1.0
            if point.wait_s is None:
                time.sleep(_SETTLING_S)
            crowd.wait_for(self._options.warm_up_rounds, [0] * len(crowd.logs), _ROUNDS_TIMEOUT_S, share)
            probe = stack.enter_context(HubWatcher(urlsplit(url).port or 0)) if url and point.sweep == CROWD else None
            began, before, done = time.monotonic(), None if url is None else read_status(url), crowd.done
            time.sleep(self._options.point_seconds * _longer(point))
            crowd.wait_for(_LEAST_ROUNDS, done, _ROUNDS_TIMEOUT_S, share)
            ended, after = time.monotonic(), None if url is None else read_status(url)
            process = probe.read() if probe is not None else None
        use = None if before is None or after is None else HubUse.between(before, after)
        seen = [seen_between(log, began, ended) for log in crowd.logs]
        return MeasuredPoint(point, seen, use, sum(log.inexact for log in crowd.logs), process)

    def _simulated(self, runs: Sequence[MeasuredPoint]) -> dict[Point, Expected]:
        self._progress("simulating the same stars")
        try:
            return {run.point: simulated(run, self._options.seed) for run in runs if is_serial(run)}
        except ModuleNotFoundError as error:
            self._notes.append(f"no simulator: {remedy_of(error)}")
            return {}

    def _described(self, traces: Traces) -> dict[str, object]:
        options = asdict(self._options) | {"only": [sweep.value for sweep in self._options.only]}
        return {
            "command": "bench star",
            **{name: str(value) if name in ("output", "trace") else value for name, value in options.items()},
            "seconds": self._options.point_seconds,
            "policy": self._settings.policies,
            "texts": len(traces.texts),
            "source_fp": traces.source.source_fp,
        }


def _longer(point: Point) -> float:
    """Times the usual seconds that this point counts."""
    if point.sweep in (POLICY, CROWD):
        return _LONGER
    return min(_MOST_LONGER, max(1.0, _ENOUGH_TARGETS / point.targets)) if point.sweep in (SCALE, HEAD) else 1.0


def _settings(options: BenchStarOptions) -> StarSettings:
    bits_per_s = None if options.bandwidth is None else options.bandwidth * _MIB
    return StarSettings(
        targets=options.scale_targets,
        law_targets=options.law_targets,
        link=LinkTimes(options.rtt_ms / 1e3, bits_per_s),
        rtts_s=options.rtts_s,
        shape=options.largest,
        shapes=_shapes(options.largest),
        policies=options.policies,
        policy=options.policies[0],
        max_batch=options.max_batch,
        draft_s=options.draft_ms / 1e3,
        draft_growth=options.draft_growth,
        verify_s=options.verify_ms / 1e3,
        unequal_targets=options.unequal_targets,
        sessions=options.sessions,
    )


def _shapes(shape: DraftShape) -> list[DraftShape]:
    """Chains and trees around the usual one."""
    chains = [DraftShape(depth, depth, 1) for depth in (1, 2, 3, 5)]
    wide = replace(shape, max_nodes=min(32, 4 * shape.max_nodes), max_depth=shape.max_depth + 1)
    return [*chains, shape, wide]


def _unused_ids(traces: Traces, size: int) -> list[int]:
    """Ids that no text holds, the highest ones; none at all where they would be too few for a tree."""
    used = {token for text in traces.texts for token in text.ids.tolist()}
    unused = [token for token in range(size - 1, -1, -1) if token not in used][:_WRONG_IDS]
    return unused if len(unused) == _WRONG_IDS else []


def _title(point: Point) -> str:
    hub = point.hub
    how = "" if hub is None else f", {hub.policy}, batches of {hub.max_batch}"
    far = f", RTT {1e3 * point.links[0].rtt_s:g} ms" if len(set(point.links)) == 1 else ", unequal RTTs"
    return f"{point.sweep}: {point.system}, {point.targets} targets{how}{far}"


FIGURES_NAME, POINTS_NAME, TABLE_NAME = "figures.json", "points.json", "report.md"


def make_directory(path: Path) -> None:
    """Make it if it is not there; asked for before the measuring, which takes minutes.

    Raises:
        UsageError: that cannot be, or nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made ({error.strerror}): give --output another place") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"nothing can be written to {path}: give --output another place")


def write_outcome(outcome: StarOutcome, directory: Path) -> Iterator[str]:
    """Write all files; a line for each, and for what is missing."""
    notes = list(outcome.notes)
    plots, missing = _plots(outcome, directory)
    notes += missing
    write_report(directory / FIGURES_NAME, outcome.report)
    points = msgspec.json.format(msgspec.json.encode(point_rows(outcome.results)), indent=2)
    write_whole(directory / POINTS_NAME, points + b"\n")
    table = star_markdown(outcome.report, outcome.results, notes)
    write_whole(directory / TABLE_NAME, table.encode())
    yield from (f"{figure.name}: {figure.value:.4g} {figure.unit}".rstrip() for figure in outcome.report.figures)
    yield from notes
    yield f"written to {directory}: {', '.join([FIGURES_NAME, POINTS_NAME, TABLE_NAME, *(p.name for p in plots)])}"


def _plots(outcome: StarOutcome, directory: Path) -> tuple[list[Path], list[str]]:
    from starsd_edge.bench.star_plots import write_plots

    try:
        return write_plots(outcome.results, directory), []
    except ModuleNotFoundError as error:
        return [], [f"no plots: {remedy_of(error)}"]
