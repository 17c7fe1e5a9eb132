"""`starsd-edge ps`: what of starsd-edge runs on this machine."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """List what runs on this machine with this cache: hubs, targets, monitors, exports, trainings, measurements."""
    from starsd_edge.running import running_commands

    show(running_commands(), time.time, options.json)


def show(commands: list[RunningCommand], clock: Callable[[], float], as_json: bool) -> None:
    """Write them to standard output."""
    from rich.table import Table
    from rich.text import Text

    from starsd_edge.cli.output import output_console
    from starsd_edge.cli.progress import megabytes
    from starsd_edge.cli.streams import printable

    memories = [resident_bytes(record) for record in commands]
    if as_json:
        rows = [_fields(record, memory) for record, memory in zip(commands, memories, strict=True)]
        sys.stdout.write(json.dumps({"running": rows}) + "\n")
        return
    if not commands:
        typer.echo("nothing of starsd-edge runs here with this cache")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in ("pid", "command"):
        table.add_column(no_wrap=True)
    for _ in ("bundle", "address"):
        table.add_column(overflow="fold")  # a long one goes on in the next line, nothing of it is left out
    for _ in ("for", "memory"):
        table.add_column(no_wrap=True)
    table.add_row("pid", "command", "bundle", "address", "for", "memory")
    for record, memory in zip(commands, memories, strict=True):
        cells = (
            str(record.pid),
            record.command,
            "\n".join(Path(bundle).name for bundle in record.bundles) or Path(record.model).name or "-",
            "\n".join(filter(None, (record.place, record.hub and f"hub {record.hub}"))) or "-",
            lasted(clock() - record.since),
            "-" if memory is None else megabytes(memory),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    output_console().print(table)


def _fields(record: RunningCommand, memory: int | None) -> dict[str, object]:
    return {
        "pid": record.pid,
        "command": record.command,
        "bundles": record.bundles,
        "model": record.model,
        "place": record.place,
        "hub": record.hub,
        "since": record.since,
        "memory_bytes": memory,
    }


def lasted(seconds: float) -> str:
    """How long, in the largest unit that has one whole of it."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def resident_bytes(record: RunningCommand) -> int | None:
    """Memory of its process; None where the kernel does not tell, and for one in another container, whose number is
    that of another process here.
    """
    from starsd_edge.running import pid_namespace

    if record.pids != pid_namespace():
        return None
    try:
        found = _RESIDENT.search(Path(f"/proc/{record.pid}/status").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
