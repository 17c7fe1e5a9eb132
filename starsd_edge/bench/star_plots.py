"""The plots of `bench star`, as PNG. They need matplotlib (the extra `bench`), imported when they are drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starsd_edge.bench.figures import TIMING_BACKEND, percentile
from starsd_edge.bench.star_figures import StarResults, has_law, law_of
from starsd_edge.bench.star_plan import COLOCATED, LAW, OURS, PLAIN, POLICY, PUBLISHED, RTT, SCALE
from starsd_edge.bench.star_runs import MeasuredPoint
from starsd_edge.bundles.cache import fonts_dir, known_cache

_SIZE = (7.0, 4.4)
"""Width and height of a plot, in inches."""
_DPI = 110
"""Pixels per inch of a plot."""
_COLOURS = {OURS: "#2f6f8f", PUBLISHED: "#b5523b", PLAIN: "#777777", COLOCATED: "#5a8f3d"}


@dataclass(frozen=True)
class _Plot:
    """One picture.

    Attributes:
        draw: draws onto axes; returns False where there is nothing to draw.
    """

    name: str
    title: str
    draw: Callable[[Any, StarResults], bool]


def write_plots(results: StarResults, directory: Path) -> list[Path]:
    """Draw every plot for which there are points.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if known_cache() is not None:
        os.environ.setdefault("MPLCONFIGDIR", str(fonts_dir()))  # read when matplotlib is imported
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    written = []
    for plot in _PLOTS:
        figure = Figure(figsize=_SIZE, dpi=_DPI)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if plot.draw(axes, results):
            axes.set_title(f"{plot.title} ({TIMING_BACKEND})", fontsize=10)
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize=8)
            path = directory / f"{plot.name}.png"
            figure.tight_layout()
            figure.savefig(path)
            written.append(path)
    return written


def _throughput(axes: Any, results: StarResults) -> bool:
    """System tokens per second over N: ours, the published design, the baselines as lines of their own slope."""
    drawn = _over_targets(axes, results, SCALE, lambda run: run.tokens_per_s)
    most = max((run.point.targets for run in results.of(SCALE)), default=0)
    for system in (PLAIN, COLOCATED):
        run = results.baseline(system)
        if run is not None and most:
            axes.plot([1, most], [run.per_target, most * run.per_target], "--", color=_COLOURS[system], label=system)
    axes.set_xlabel("targets N")
    axes.set_ylabel("tokens/s, all targets")
    return drawn


def _per_target(axes: Any, results: StarResults) -> bool:
    drawn = _over_targets(axes, results, SCALE, lambda run: run.per_target)
    for system in (PLAIN, COLOCATED):
        run = results.baseline(system)
        if run is not None and drawn:
            axes.axhline(run.per_target, linestyle="--", color=_COLOURS[system], label=system)
    axes.set_xlabel("targets N")
    axes.set_ylabel("tokens/s of each target")
    return drawn


def _law(axes: Any, results: StarResults) -> bool:
    runs = [run for run in results.of(LAW) if has_law(run)]
    targets = [run.point.targets for run in runs]
    axes.plot(targets, [run.tokens_per_s for run in runs], "o-", color=_COLOURS[OURS], label="measured")
    axes.plot(targets, [law_of(run).tokens_per_s for run in runs], "k:", label="closed form, from measured S and Z")
    simulated = [(run.point.targets, results.simulated[run.point]) for run in runs if run.point in results.simulated]
    if simulated:
        counts, expected = zip(*simulated, strict=True)
        axes.plot(counts, [each.tokens_per_s for each in expected], "x--", color="#8a5fa8", label="simulated")
    axes.set_xlabel("targets N, one draft at a time")
    axes.set_ylabel("tokens/s, all targets")
    return bool(runs)


def _utilisation(axes: Any, results: StarResults) -> bool:
    runs = [run for run in results.of(LAW) if run.hub is not None and has_law(run)]
    targets = [run.point.targets for run in runs]
    axes.plot(targets, [run.hub.busy for run in runs if run.hub], "o-", color=_COLOURS[OURS], label="hub busy")
    axes.plot(targets, [law_of(run).utilisation for run in runs], "k:", label="closed form")
    axes.set_xlabel("targets N, one draft at a time")
    axes.set_ylabel("share of time")
    axes.set_ylim(0, 1.05)
    gaps = axes.twinx()
    idle = [1e3 * run.hub.idle / max(1e-9, run.hub.drafts_per_s) for run in runs if run.hub]
    gaps.plot(targets, idle, "s--", color=_COLOURS[PUBLISHED])
    axes.plot([], [], "s--", color=_COLOURS[PUBLISHED], label="idle gap per draft, ms (right)")
    gaps.set_ylabel("ms")
    return bool(runs)


def _latency(axes: Any, results: StarResults) -> bool:
    """Round times: how long a reader waits for the next few tokens, and how much that varies."""
    drawn = False
    for system in (OURS, PUBLISHED):
        runs = [run for run in results.of(SCALE, system) if run.periods_s]
        for share, style in ((0.5, "-"), (0.9, "--"), (0.99, ":")):
            values = [1e3 * percentile(run.periods_s, share) for run in runs]
            label = f"{system}, p{100 * share:g}"
            axes.plot([run.point.targets for run in runs], values, style, color=_COLOURS[system], label=label)
        drawn = drawn or bool(runs)
    axes.set_xlabel("targets N")
    axes.set_ylabel("round, ms")
    return drawn


def _rtt(axes: Any, results: StarResults) -> bool:
    runs = results.of(RTT)
    for targets in sorted({run.point.targets for run in runs}):
        own = [run for run in runs if run.point.targets == targets]
        rtts = [1e3 * run.point.links[0].rtt_s for run in own]
        axes.plot(rtts, [run.tokens_per_s for run in own], "o-", label=f"N = {targets}")
        axes.plot(rtts, [law_of(run).tokens_per_s if has_law(run) else float("nan") for run in own], "k:")
    axes.plot([], [], "k:", label="closed form")
    axes.set_xscale("log")
    axes.set_xlabel("RTT, ms")
    axes.set_ylabel("tokens/s, all targets")
    return bool(runs)


def _fairness(axes: Any, results: StarResults) -> bool:
    runs = results.of(POLICY)
    for run in runs:
        total = sum(run.draft_shares) or 1.0
        shares = [len(run.targets) * share / total for share in run.draft_shares]
        rtts = [1e3 * link.rtt_s for link in run.point.links]
        axes.plot(rtts, shares, "o-", markersize=3, label=run.point.hub.policy if run.point.hub else "")
    axes.set_xscale("log")
    axes.set_xlabel("RTT of the target, ms")
    axes.set_ylabel("drafter time, share of an equal part")
    axes.set_ylim(bottom=0)
    return bool(runs)


def _over_targets(axes: Any, results: StarResults, sweep: str, value: Callable[[MeasuredPoint], float]) -> bool:
    systems: Sequence[str] = (OURS, PUBLISHED)
    drawn = False
    for system in systems:
        runs = results.of(sweep, system)
        if runs:
            targets = [run.point.targets for run in runs]
            axes.plot(targets, [value(run) for run in runs], "o-", color=_COLOURS[system], label=system)
            drawn = True
    return drawn


_PLOTS = (
    _Plot("throughput", "System throughput", _throughput),
    _Plot("per-target", "Throughput of each target", _per_target),
    _Plot("law", "Throughput against the star's law", _law),
    _Plot("utilisation", "The hub's time", _utilisation),
    _Plot("latency", "Round times", _latency),
    _Plot("rtt", "Throughput over the round-trip time", _rtt),
    _Plot("fairness", "Drafter time of unequal targets", _fairness),
)
