"""`starsd-edge ps`: what of starsd-edge runs on this machine."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import AsJson

if TYPE_CHECKING:
    from starsd_edge.running import RunningCommand

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class PsOptions:
    """The options of the command."""

    json: AsJson = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "ps", ps, PsOptions)


def ps(options: PsOptions) -> None:
    """List the hubs, targets and exports of this machine that use this cache."""
    from starsd_edge.running import running_commands

    show(running_commands(), time.time, options.json)


def show(commands: list[RunningCommand], clock: Callable[[], float], as_json: bool) -> None:
    """Write them to standard output."""
    from rich.table import Table

    from starsd_edge.cli.output import output_console
    from starsd_edge.cli.progress import megabytes
    from starsd_edge.cli.streams import printable

    rows: list[dict[str, Any]] = [
        {
            "pid": record.pid,
            "command": record.command,
            "bundles": record.bundles,
            "place": record.place,
            "since": record.since,
            "memory_bytes": resident_bytes(record.pid),
        }
        for record in commands
    ]
    if as_json:
        sys.stdout.write(json.dumps({"running": rows}) + "\n")
        return
    if not rows:
        typer.echo("nothing of starsd-edge runs here with this cache")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("pid", "command", "bundle", "address", "for", "memory")
    for row in rows:
        memory = row["memory_bytes"]
        table.add_row(
            str(row["pid"]),
            printable(row["command"]),
            printable(", ".join(Path(bundle).name for bundle in row["bundles"]) or "-"),
            printable(row["place"] or "-"),
            lasted(clock() - row["since"]),
            "-" if memory is None else megabytes(memory),
        )
    output_console().print(table)


def lasted(seconds: float) -> str:
    """How long, in the largest unit that has one whole of it."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def resident_bytes(pid: int) -> int | None:
    """Memory of a process; None where the kernel does not tell, as of one in another container."""
    try:
        found = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
