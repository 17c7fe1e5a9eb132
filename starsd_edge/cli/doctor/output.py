"""How the doctor shows what it found: lines of 80 columns for people, one object for scripts."""

from __future__ import annotations

import sys

from rich.text import Text

from starsd_edge.cli.findings_output import finding_text, findings_table, output_console
from starsd_edge.doctor.findings import Findings, Level

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
