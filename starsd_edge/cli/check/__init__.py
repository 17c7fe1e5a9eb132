"""`starsd-edge check`: does a bundle compute what its model computes, and its engines what its graph does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import AsJson, Threads, bundle_names


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of the command."""

    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="A bundle's directory, or its name.", autocompletion=bundle_names)
    ]
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare with this checkpoint (as `export` takes it). Default: the one in the cache, if it is there.",
        ),
    ] = None
    engine: Annotated[
        tuple[Path, ...],
        typer.Option(
            metavar="DIRECTORY", help="Check these engines. Default: all of the bundle that are on this machine."
        ),
    ] = ()
    threads: Threads = None
    as_json: AsJson = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "check", check, CheckOptions)


def check(options: CheckOptions) -> None:
    """Check a bundle: its files, its graph against the checkpoint and what was recorded at export, its engines.

    Passes of every kind are compared, with the KV of every layer, and then some greedy text. What this machine cannot
    check it says. Exit code: 0 if nothing differs, 1 if something does, 2 for wrong options.
    """
    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.cli.check.run import check_bundle, show
    from starsd_edge.cli.progress import steps
    from starsd_edge.running import listed

    with listed("check", bundles_at(options.bundle)), steps("check", quiet=options.as_json) as progress:
        report = check_bundle(options.bundle, options.checkpoint, options.engine, options.threads, progress)
    show(report, options.as_json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
