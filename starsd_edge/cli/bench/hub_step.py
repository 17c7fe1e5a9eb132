"""`bench hub-step`: S(b), the time that a hub is busy with one request of each of b targets, and its memory per row.

A step is what a hub does for a batch: take in the rows that came with the requests, then draft a tree for each. Ids and
features are drawn at random, so that no target is needed: the head's work does not depend on them, but the trees are
those of a head that is sure of nothing, which grow to their limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psutil
from rich.table import Table

from starsd_edge.bench.figures import BenchReport, Figure, describe_machine, label_of
from starsd_edge.cli.bench.options import BenchHubStepOptions, tree_shapes
from starsd_edge.cli.output import output_console
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape

if TYPE_CHECKING:
    from starsd_edge.heads.engine import HeadSpec
    from starsd_server.drafters.eagle import EagleDrafter


_SEED = 20
_MEMORY_ROWS = 1024
"""Rows of each session whose memory is measured; with so many, little of the memory that a session holds is unused."""
_MEMORY_FIRST, _MEMORY_SESSIONS = 12, 36
"""Sessions that only fill what the allocator has kept free and do not count, and all sessions of the measurement."""


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of steps of one kind.

    Attributes:
        nodes: of a tree, on average.
    """

    tree: str
    sessions: int
    samples: Sequence[float]
    nodes: float


@dataclass(frozen=True)
class RowMemory:
    """Bytes that the hub holds for rows.

    Attributes:
        rows: for which it holds memory.
        formula: 2 x layers x KV heads x width of a head x bytes of a number, for a row.
        measured: by which the process grew, for a row; None where K and V are not in its memory.
    """

    rows: int
    formula: int
    measured: float | None


class HubStepBench:
    """One run of the command."""

    def __init__(
        self,
        options: BenchHubStepOptions,
        progress: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
        resident: Callable[[], int] = lambda: int(psutil.Process().memory_info().rss),
    ) -> None:
        """Args:
        clock: seconds.
        resident: bytes of memory that the process holds.
        """
        self._options = options
        self._progress = progress
        self._clock = clock
        self._resident = resident
        self._draw = np.random.default_rng(_SEED)

    def run(self) -> tuple[BenchReport, list[StepTimes], RowMemory]:
        """Measure all kinds of steps by turns, then the memory."""
        from starsd_edge.bundles.catalogue import find_bundle
        from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle
        from starsd_edge.heads.loading import CPU, choose, cuda_is_likely, open_head
        from starsd_server.drafters.eagle import EagleDrafter

        options = self._options
        self._progress("loading the head")
        bundle = load_draft_bundle(find_bundle(options.bundle))
        manifest, asked = bundle.manifest, (options.device.value, options.draft_precision.value)
        device, dtype = choose(manifest.weights, *asked, cuda_is_likely)
        engine = open_head(bundle, options.threads, *asked)
        most = max(*options.sessions, _MEMORY_SESSIONS)
        drafter = EagleDrafter(engine, draft_ids(bundle), manifest.fingerprint, manifest.accepts, most)
        drafter.warm_up()
        times = self._times(drafter, manifest.spec)
        self._progress("measuring the memory")
        memory = self._memory(drafter, manifest.spec, in_process=device == CPU)
        settings = {
            "bundle": options.bundle,
            "device": device,
            "numbers": dtype or f"{manifest.weights} weights",
            "rows": options.rows,
            "new_rows": options.new_rows,
            "threads": options.threads,
            "seed": _SEED,
        }
        machine = describe_machine(("onnxruntime", "torch", "numpy"))
        return BenchReport(_figures(times, memory, label_of(device)), machine, settings), times, memory

    def _times(self, drafter: EagleDrafter, spec: HeadSpec) -> list[StepTimes]:
        options = self._options
        kinds = [
            (tree, DraftShape(*shape), sessions)
            for tree, shape in zip(options.tree, tree_shapes(options.tree), strict=True)
            for sessions in options.sessions
        ]
        samples: list[list[float]] = [[] for _ in kinds]
        nodes: list[list[int]] = [[] for _ in kinds]
        for number in range(options.repeats):
            self._progress(f"step {number + 1} of {options.repeats}")
            for kind, (_, shape, sessions) in enumerate(kinds):
                took, drafted = self._step(drafter, spec, sessions, shape)
                samples[kind].append(took)
                nodes[kind].append(drafted)
        return [
            StepTimes(tree, sessions, samples[kind], float(np.mean(nodes[kind])) / sessions)
            for kind, (tree, _, sessions) in enumerate(kinds)
        ]

    def _step(self, drafter: EagleDrafter, spec: HeadSpec, sessions: int, shape: DraftShape) -> tuple[float, int]:
        """Milliseconds of one step on new sessions, whose first rows do not count, and the nodes drafted."""
        for session in range(sessions):
            drafter.open(session, 0, 0)
        drafter.extend([self._rows(session, 0, self._options.rows, spec) for session in range(sessions)])
        fresh = [self._rows(session, self._options.rows, self._options.new_rows, spec) for session in range(sessions)]
        began = self._clock()
        lost = drafter.extend(fresh)
        outcomes = drafter.draft(range(sessions), [shape] * sessions)
        took = 1000 * (self._clock() - began)
        for error in [*lost.values(), *(outcome for outcome in outcomes if isinstance(outcome, Exception))]:
            raise error
        for session in range(sessions):
            drafter.close(session)
        return took, sum(len(outcome) for outcome in outcomes if not isinstance(outcome, Exception))

    def _memory(self, drafter: EagleDrafter, spec: HeadSpec, *, in_process: bool) -> RowMemory:
        rows = min(_MEMORY_ROWS, spec.max_positions)
        self._fill(drafter, spec, range(_MEMORY_FIRST), rows)
        before, first = self._resident(), drafter.rows_in_use
        self._fill(drafter, spec, range(_MEMORY_FIRST, _MEMORY_SESSIONS), rows)
        grown, held = self._resident() - before, drafter.rows_in_use - first
        for session in range(_MEMORY_SESSIONS):
            drafter.close(session)
        return RowMemory(held, drafter.bytes_per_row, grown / held if in_process else None)

    def _fill(self, drafter: EagleDrafter, spec: HeadSpec, sessions: Sequence[int], rows: int) -> None:
        for session in sessions:
            drafter.open(session, 0, 0)
            drafter.extend([self._rows(session, 0, rows, spec)])

    def _rows(self, session: int, first: int, count: int, spec: HeadSpec) -> NewRows:
        ids = self._draw.integers(0, spec.vocab_size, count).tolist()
        features = self._draw.standard_normal((count, spec.hidden_size), dtype=np.float32).astype(np.float16)
        return NewRows(session, first, ids, features)


def _figures(times: Sequence[StepTimes], memory: RowMemory, label: str) -> list[Figure]:
    figures = [Figure.median(f"step_ms_{each.tree}_b{each.sessions}", each.samples, "ms", label) for each in times]
    ratios = [
        Figure(f"step_{one.tree}_b{many.sessions}_over_b1", _median(many) / _median(one), "", label)
        for one in times
        if one.sessions == 1
        for many in times
        if many.tree == one.tree and many.sessions > 1
    ]
    figures += [*ratios, Figure("bytes_per_row_formula", memory.formula, "B", label)]
    if memory.measured is not None:
        figures.append(Figure("bytes_per_row_measured", memory.measured, "B", label))
    return figures


def _median(times: StepTimes) -> float:
    return float(np.median(times.samples))


def show(report: BenchReport, times: Sequence[StepTimes], memory: RowMemory) -> None:
    """One line for each tree and number of sessions, then the memory, and what was measured how."""
    console = output_console(exact=True)
    table = Table(box=None, pad_edge=False, width=console.width)
    for heading in ("tree", "sessions", "step ms (least-most)", "over one session", "nodes/ tree"):
        table.add_column(heading, justify="left" if heading == "tree" else "right")
    for each in times:
        figure = report[f"step_ms_{each.tree}_b{each.sessions}"]
        ratio = report.get(f"step_{each.tree}_b{each.sessions}_over_b1")
        table.add_row(
            each.tree,
            str(each.sessions),
            f"{figure.value:.2f} ({min(each.samples):.2f}-{max(each.samples):.2f})",
            "-" if ratio is None else f"{ratio.value:.2f}",
            f"{each.nodes:.1f}",
        )
    console.print(table)
    measured = "not in this process" if memory.measured is None else f"{memory.measured:.0f} B measured"
    console.print(f"memory of a row: {memory.formula} B by the formula, {measured} ({memory.rows} rows)")
    machine, settings = report.machine, report.settings
    console.print(
        f"{report.figures[0].label}: {machine['cpu']}, {machine['cores']} cores, load average "
        f"{machine['load_average_before']} before; {settings['numbers']} on {settings['device']}, "
        f"{settings['threads'] or 'all'} threads; {settings['rows']} rows each and {settings['new_rows']} with a "
        "request",
        markup=False,
    )
    console.print("step: rows taken in and a tree for each session; tree: nodes x depth x branching, at most")
