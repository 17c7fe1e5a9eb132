"""Standard output of commands that tell what they found: a console of 80 columns, and tables of findings."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from starsd_edge.doctor.findings import Findings, Level

WIDTH = 80


def output_console(*, exact: bool = False) -> Console:
    """Standard output, no wider than `WIDTH`; `exact` makes it as wide, also where a terminal is narrower."""
    console = Console(file=sys.stdout, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal and not exact else WIDTH
    return console


def findings_table() -> Table:
    """How it ended, what was looked at, what was found."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def finding_text(finding: str, remedy: str) -> Text:
    """A finding, and below it what to do, if there is anything."""
    text = Text(finding)
    if remedy:
        text.append(f"\n-> {remedy}", style="italic")
    return text


_STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.FAILURE: "bold red",
    Level.NOT_RUN: "dim",
}


def show(report: Findings, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.write(report.to_json().decode())
        return
    console = output_console()
    table = findings_table()
    for finding in report.findings:
        table.add_row(_level(finding.level), Text(finding.name), finding_text(finding.finding, finding.remedy))
    console.print(table)
    console.print(Text(report.summary, style="bold"))


def _level(level: Level) -> Text:
    return Text(level.value.replace("-", " "), style=_STYLES[level])
