"""Where the results of `bench star` go: a directory with figures, points, tables and plots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from starsd_edge.bench.figures import write_report
from starsd_edge.bench.star_report import point_rows, star_markdown
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.cli.extras import missing_extra
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.bench_star import StarOutcome

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
        remedy = missing_extra(error.name)
        if remedy is None:
            raise
        return [], [f"no plots: {remedy}"]
