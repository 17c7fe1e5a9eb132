"""How a check is shown: a line for each within 80 columns for people, one object for scripts."""

from __future__ import annotations

import sys

from rich.table import Table
from rich.text import Text

from starsd_edge.cli.findings_output import finding_text, findings_table, output_console
from starsd_edge.parity.findings import Check, Part, Report, Status

_STYLES = {Status.OK: "green", Status.DIFFERS: "bold red", Status.NOT_CHECKED: "dim"}


def show(report: Report, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.write(report.to_json().decode())
        return
    console = output_console()
    for part in report.parts:
        console.print(Text(part.title, style="bold"))
        console.print(_table(part))
    console.print(Text(report.summary, style="bold"))


def _table(part: Part) -> Table:
    table = findings_table()
    remedies = [check.remedy for check in part.checks]
    for number, check in enumerate(part.checks):
        is_last = check.remedy not in remedies[number + 1 :]  # what mends several stands once, below the last of them
        text = finding_text(check.finding, check.remedy if is_last else "")
        table.add_row(Text(f"  {_word(check)}", style=_STYLES[check.status]), Text(check.name), text)
    return table


def _word(check: Check) -> str:
    return "not checked" if check.status is Status.NOT_CHECKED else check.status.value
