"""The options of `bench trace`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.options import MAX_THREADS

LEAST_TOKENS = 32
"""Of an answer that is worth replaying: a session has only begun before."""


@dataclass(frozen=True, kw_only=True)
class BenchTraceOptions:
    """The options of the command."""

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    output: Annotated[
        Path | None,
        typer.Option(help="File to write; default: one of the bundle's name in the cache.", show_default=False),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(help="File with one prompt per line; without it, those shipped for judging.", show_default=False),
    ] = None
    texts: Annotated[int, typer.Option(min=1, max=1024, help="Record so many texts.")] = 16
    new_tokens: Annotated[int, typer.Option(min=LEAST_TOKENS, max=8192, help="Most tokens of every answer.")] = 320
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads of the engine; default: all cores.")
    ] = None
