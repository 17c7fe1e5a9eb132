"""The options of `bench hub-step`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.bench_drafts_options import tree_shapes
from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.drafters import HeadDevice, HeadPrecision
from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.errors import UsageError

_MOST_SESSIONS = 1024


@dataclass(frozen=True, kw_only=True)
class BenchHubStepOptions:
    """The options of the command.

    Raises:
        UsageError: a tree is not written as three numbers, or a number of sessions cannot be measured.
    """

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the draft head: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    sessions: Annotated[tuple[int, ...], typer.Option(help="Drafted for at once; may be given several times.")] = (
        1,
        2,
        4,
        8,
        16,
    )
    tree: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft; may be given several times."),
    ] = ("8x5x3", "4x4x1")
    rows: Annotated[int, typer.Option(min=1, help="Tokens that every session has at the beginning.")] = 256
    new_rows: Annotated[int, typer.Option(min=1, help="Tokens that come with every request.")] = 2
    repeats: Annotated[int, typer.Option(min=3, help="Steps of each kind.")] = 30
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads of the head.", show_default=False)
    ] = None
    device: Annotated[HeadDevice, typer.Option(help="As in run-draft.")] = HeadDevice.CPU
    draft_precision: Annotated[HeadPrecision, typer.Option(help="As in run-draft.")] = HeadPrecision.AUTO
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.", show_default=False)] = None

    def __post_init__(self) -> None:
        tree_shapes(self.tree)
        distinct = len(set(self.sessions)) == len(self.sessions)
        if not distinct or not all(1 <= count <= _MOST_SESSIONS for count in self.sessions):
            raise UsageError(f"--sessions takes numbers from 1 to {_MOST_SESSIONS}, each once")
