"""`bench verify`: what a verify pass of T rows takes on this device, by the tokens that are committed before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from starsd_edge.bench.decode_figures import verify_curve_figures
from starsd_edge.bench.figures import BenchReport, Figure, describe_machine, label_of, usable_cores
from starsd_edge.bench.prompts import read_messages
from starsd_edge.bench.runs import lengths_within, measure_verify, sizes_up_to
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.cli.bench.modes import load_target
from starsd_edge.cli.bench.options import BenchVerifyOptions
from starsd_edge.cli.output import output_console
from starsd_edge.doctor.curve_store import CurveKey, Passes, StoredCurves, curve_key, stored_curves
from starsd_edge.errors import UsageError
from starsd_edge.runtime.loading import check_device
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from starsd_jetson.target import Target


@dataclass(frozen=True)
class VerifyOutcome:
    """What came of it.

    Attributes:
        report: the figures.
        passes: in seconds.
        key: under which it is kept.
        stored: as it is kept, or would be.
        drafts: what a hub is asked for at first, by committed tokens.
    """

    report: BenchReport
    passes: Passes
    key: CurveKey
    stored: StoredCurves
    drafts: Mapping[int, DraftShape]


class VerifyBench:
    """One run of the command.

    Args:
        clock: seconds.
    """

    def __init__(
        self,
        options: BenchVerifyOptions,
        progress: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._options = options
        self._progress = progress
        self._clock = clock

    def run(self) -> VerifyOutcome:
        """Measure.

        Raises:
            UsageError: the engine takes no such passes, or the device is none.
            StarsdError: the bundle cannot be run.
        """
        options = self._options
        check_device(options.device)
        self._progress(f"loading {find_bundle(options.bundle).name}")
        threads = options.threads or usable_cores()
        target = load_target(options.bundle, options.device, threads)
        bundle = target.bundle
        key = curve_key(bundle.manifest, threads, options.device, target.engine.spec.digest)
        machine = describe_machine(("onnxruntime", "tensorrt", "numpy"))
        passes = self._measure(target)
        stored = stored_curves(key, bundle.manifest, passes)
        settings = {
            "bundle": options.bundle,
            "device": options.device,
            "ran_on": stored.device,
            "threads": threads,
            "passes": options.passes,
            "power_mode": stored.power_mode,
            "weights": bundle.manifest.graph.weights,
            "kv_dtype": bundle.manifest.graph.kv_dtype,
        }
        report = BenchReport([*verify_figures(passes, label_of(options.device))], machine, settings)
        return VerifyOutcome(report, passes, key, stored, _first_drafts(target, stored))

    def _measure(self, target: Target) -> Passes:
        sizes = self._sizes(target)
        lengths = self._lengths(target, max(sizes))
        tokens = [token for message in read_messages(None) for token in target.encode(message, raw=False)]
        passes = {}
        for committed in lengths:
            self._progress(f"passes on {committed} tokens")
            text = np.resize(np.asarray(tokens), committed + 1).tolist()
            passes[committed] = measure_verify(target.engine, text, committed, self._options.passes, sizes, self._clock)
        return passes

    def _sizes(self, target: Target) -> list[int]:
        most = min(target.engine.spec.max_tree, target.context(None))
        if self._options.rows and max(self._options.rows) > most:
            raise UsageError(f"this bundle verifies at most {most} rows in a pass: leave out --rows above it")
        return sorted({1, *self._options.rows}) if self._options.rows else sizes_up_to(most)

    def _lengths(self, target: Target, rows: int) -> list[int]:
        context = target.context(None)
        if not self._options.committed:
            return lengths_within(context, rows)
        if max(self._options.committed) + rows > context:
            raise UsageError(
                f"{max(self._options.committed)} tokens and {rows} rows do not fit a context of {context}: lower "
                "--committed"
            )
        return sorted(set(self._options.committed))


def verify_figures(passes: Passes, label: str) -> Iterator[Figure]:
    """Medians with their spread, and each as a multiple of one row's, pass by pass."""
    for committed, seconds in passes.items():
        yield from verify_curve_figures(seconds, label, f"_after_{committed}")


def _first_drafts(target: Target, stored: StoredCurves) -> dict[int, DraftShape]:
    """As `run-target` with a hub asks where nothing is said."""
    from starsd_jetson.draft_size import DraftCostModel, hub_draft_shape

    curves = stored.curves()
    limit = hub_draft_shape(target.engine.spec, None, None, None, curves.at(0))
    drafts = {}
    for committed in curves.by_committed:
        cost_model = DraftCostModel(curves)
        cost_model.begin(committed)
        drafts[committed] = cost_model.wanted(limit)
    return drafts


def show(outcome: VerifyOutcome) -> None:
    """A line for each number of committed tokens and rows, then the first drafts, and what was measured how."""
    report, settings = outcome.report, outcome.report.settings
    console = output_console(exact=True)
    table = Table(box=None, pad_edge=False, width=console.width)
    for heading in ("committed", "rows", "pass ms", "least", "most", "over one row"):
        table.add_column(heading, justify="right")
    for committed, seconds in outcome.passes.items():
        for rows, times in seconds.items():
            ratio = report.get(f"verify{rows}_over_verify1_after_{committed}")
            table.add_row(
                str(committed),
                str(rows),
                f"{report[f'verify_ms_{rows}_after_{committed}'].value:.2f}",
                f"{1e3 * min(times):.2f}",
                f"{1e3 * max(times):.2f}",
                "1" if ratio is None else f"{ratio.value:.2f}",
            )
    console.print(table)
    for committed, shape in outcome.drafts.items():
        console.print(
            f"first drafts after {committed} tokens: up to {_count(shape.max_nodes, 'draft token', 'draft tokens')} on "
            f"{_count(shape.max_depth, 'level', 'levels')}"
        )
    mode = f", power mode {settings['power_mode']}" if settings["power_mode"] else ""
    load = report.machine["load_average_before"]
    console.print(
        f"{report.figures[0].label}: {settings['ran_on']}{mode}, {settings['threads']} threads, load average {load} "
        f"before; {settings['bundle']}, {settings['weights']} weights, {settings['kv_dtype']} KV; {settings['passes']} "
        "passes of each kind, by turns",
        markup=False,
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
