"""The table of `bench verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from starsd_edge.cli.bench_verify import Outcome

WIDTH = 80


def show_passes(outcome: Outcome, console: Console, *, kept: bool) -> None:
    """A line for each number of committed tokens and rows, then the first drafts, and what was measured how."""
    report, settings = outcome.report, outcome.report.settings
    table = Table(box=None, pad_edge=False, width=WIDTH)
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
            f"first drafts after {committed} tokens: up to {_count(shape.max_nodes, 'guess', 'guesses')} on "
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
    console.print("kept for run-target and plan" if kept else "not kept")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
