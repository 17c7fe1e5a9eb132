"""How a check is shown: a line for each within 80 columns for people, one object for scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.bench_output import progress_lines
from starsd_edge.parity.findings import Check, Part, Report, Status

WIDTH = 80
_STYLES = {Status.OK: "green", Status.DIFFERS: "bold red", Status.NOT_CHECKED: "dim"}


@contextmanager
def reporting(as_json: bool) -> Iterator[Callable[[str], None]]:
    """Show the step that runs on standard error; nothing for scripts."""
    if as_json:
        yield lambda step: None
        return
    with progress_lines("check") as progress:
        yield progress


def show(report: Report, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.write(report.to_json().decode())
        return
    console = Console(file=sys.stdout, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    for part in report.parts:
        console.print(Text(part.title, style="bold"))
        console.print(_table(part))
    console.print(Text(report.summary, style="bold"))


def _table(part: Part) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    remedies = [check.remedy for check in part.checks]
    for number, check in enumerate(part.checks):
        is_last = check.remedy not in remedies[number + 1 :]  # what mends several stands once, below the last of them
        table.add_row(Text(f"  {_word(check)}", style=_STYLES[check.status]), Text(check.name), _text(check, is_last))
    return table


def _word(check: Check) -> str:
    return "not checked" if check.status is Status.NOT_CHECKED else check.status.value


def _text(check: Check, with_remedy: bool) -> Text:
    text = Text(check.finding)
    if check.remedy and with_remedy:
        text.append(f"\n-> {check.remedy}", style="italic")
    return text
