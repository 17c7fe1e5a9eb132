"""`starsd-edge doctor`: is everything there, and what would a hub be worth."""

from __future__ import annotations

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.doctor.options import DoctorOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "doctor", doctor, DoctorOptions)


def doctor(options: DoctorOptions) -> None:
    """Check this machine, its bundles and the hub; with --network, the link and what a hub at its end is worth.

    Exit code: 0 if nothing failed (notes and warnings do not count), 1 if something did, 2 for wrong options.
    """
    from starsd_edge.cli.output import show
    from starsd_edge.cli.progress import steps

    with steps("doctor", quiet=options.as_json) as progress:
        if options.network:
            from starsd_edge.cli.doctor.network import check_network

            report = check_network(options, options.network, progress)
        else:
            from starsd_edge.cli.doctor.machine import check_all

            report = check_all(options, progress)

    show(report, options.as_json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
