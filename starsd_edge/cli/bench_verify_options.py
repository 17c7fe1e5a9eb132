"""The options of `bench verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BenchVerifyOptions:
    """The options of the command.

    Raises:
        UsageError: a number of rows or of tokens cannot be measured.
    """

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    device: Annotated[str, typer.Option(help="As in run-target.")] = "cpu"
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads of the engine.", show_default=False)
    ] = None
    rows: Annotated[
        tuple[int, ...],
        typer.Option(
            help="Rows of a pass, the root included; may be given several times. Default: 1, 2, 4 .. the bundle's "
            "largest tree.",
            show_default=False,
        ),
    ] = ()
    committed: Annotated[
        tuple[int, ...],
        typer.Option(
            help="Tokens in the KV cache; may be given several times. Default: 16, 256, 1024 where they fit.",
            show_default=False,
        ),
    ] = ()
    passes: Annotated[int, typer.Option(min=3, max=1000, help="Passes of each kind.")] = 15
    keep: Annotated[
        bool,
        typer.Option(
            help="Do not keep the times, by which run-target sizes its first drafts and which plan reads.",
            show_default=False,
        ),
    ] = True
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.", show_default=False)] = None

    def __post_init__(self) -> None:
        if any(rows < 1 for rows in self.rows) or any(tokens < 0 for tokens in self.committed):
            raise UsageError("--rows takes numbers from 1 on, and --committed from 0 on")
