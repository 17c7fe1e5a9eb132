"""What `doctor` and `check` have in common where they show what they found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from starsd_edge.cli.bench.output import progress_lines

WIDTH = 80


@contextmanager
def reporting(command: str, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Show the step that runs on standard error; nothing for scripts."""
    if as_json:
        yield lambda step: None
        return
    with progress_lines(command) as progress:
        yield progress


def output_console() -> Console:
    """Standard output, no wider than `WIDTH`."""
    console = Console(file=sys.stdout, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
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
