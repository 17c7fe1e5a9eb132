"""The options of `starsd-edge check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.shared_options import AsJson, Threads, bundle_names


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of the command."""

    bundle: Annotated[
        str,
        typer.Argument(metavar="BUNDLE", help="A bundle's directory, or its name.", autocompletion=bundle_names),
    ]
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare with this checkpoint (as `export` takes it). Default: the one in the cache, if it is there.",
            show_default=False,
        ),
    ] = None
    engine: Annotated[
        tuple[Path, ...],
        typer.Option(
            metavar="DIRECTORY",
            help="Check these engines. Default: all of the bundle that are on this machine.",
            show_default=False,
        ),
    ] = ()
    threads: Threads = None
    as_json: AsJson = False
