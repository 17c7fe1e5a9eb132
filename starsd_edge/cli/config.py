"""`starsd-edge config`: where options come from, and what they are."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from starsd_edge.cli.commands import HOW_TO_SET
from starsd_edge.cli.settings import Settings
from starsd_edge.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Show options that files and the environment set.", no_args_is_help=True)
    group.command("show", epilog=HOW_TO_SET)(show)
    group.command("path")(path)
    app.add_typer(group, name="config")


def show(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Only of this command, like run-target or bench decode.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show every option with its value and where that is from, in the form of a configuration file.

    A flag goes before the environment, the environment before a file, a file before the default.
    """
    from starsd_edge.cli.config_report import as_object, as_toml, gather

    settings: Settings = context.obj
    report = gather(context, settings, tuple(command or ()))
    if wrong := list(dict.fromkeys(text for each in report if (text := settings.fault(each)))):
        raise UsageError("; ".join(wrong))
    if as_json:
        import json

        typer.echo(json.dumps(as_object(report, settings.files), indent=2))
    else:
        typer.echo("\n".join(as_toml(report)))
    for name in settings.unknown:
        typer.echo(f"note: {name} is set, and there is no such option", err=True)
    faults = [f"{' '.join(path)}: {command.fault}" for path, command in report.items() if command.fault]
    if faults:
        raise UsageError("; ".join(faults))


def path(context: typer.Context) -> None:
    """Show which configuration files are read; what a later one says goes before what an earlier one says."""
    from starsd_edge.cli.settings_places import usual_files

    settings: Settings = context.obj
    for file in settings.files:
        typer.echo(file)
    if not settings.files:
        places = ", ".join(str(place) for place in usual_files(os.environ))
        typer.echo(f"there is none; looked for: {places}", err=True)
