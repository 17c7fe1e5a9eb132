"""How the doctor shows what it found: lines of 80 columns for people, one object for scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.bench_output import progress_lines
from starsd_edge.doctor.findings import Finding, Level, Report

WIDTH = 80
_STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.FAILURE: "bold red",
    Level.NOT_RUN: "dim",
}


@contextmanager
def reporting(as_json: bool) -> Iterator[Callable[[str], None]]:
    """Show the step that runs on standard error; nothing for scripts."""
    if as_json:
        yield lambda step: None
        return
    with progress_lines("doctor") as progress:
        yield progress


def show(report: Report, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.write(report.to_json().decode())
        return
    console = Console(file=sys.stdout, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report.findings:
        table.add_row(_level(finding.level), Text(finding.name), _text(finding))
    console.print(table)
    console.print(Text(report.summary, style="bold"))


def _level(level: Level) -> Text:
    return Text(level.value.replace("-", " "), style=_STYLES[level])


def _text(finding: Finding) -> Text:
    text = Text(finding.finding)
    if finding.remedy:
        text.append(f"\n-> {finding.remedy}", style="italic")
    return text
