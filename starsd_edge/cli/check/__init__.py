"""`starsd-edge check`: does a bundle compute what its model computes, and its engines what its graph does."""

from __future__ import annotations

import typer

from starsd_edge.cli.check.options import CheckOptions
from starsd_edge.cli.commands import add_command


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "check", check, CheckOptions)


def check(options: CheckOptions) -> None:
    """Check a bundle: its files, its graph against the checkpoint and what was recorded at export, its engines.

    Passes of every kind are compared, with the KV of every layer, and then some greedy text. What this machine cannot
    check it says. Exit code: 0 if nothing differs, 1 if something does, 2 for wrong options.
    """
    from starsd_edge.cli.check.run import check_bundle, show
    from starsd_edge.cli.progress import steps

    with steps("check", quiet=options.as_json) as progress:
        report = check_bundle(options, progress)
    show(report, options.as_json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
