"""The table of `bench hub-step`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from starsd_edge.bench.figures import Report

if TYPE_CHECKING:
    from starsd_edge.cli.bench_hub_step import Memory, StepTimes

_WIDTH = 80


def show_steps(report: Report, times: Sequence[StepTimes], memory: Memory, console: Console) -> None:
    """One line for each tree and number of sessions, then the memory, and what was measured how."""
    table = Table(box=None, pad_edge=False, width=_WIDTH)
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
