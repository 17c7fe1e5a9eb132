"""Finding the settings of one call: which files, then the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from starsd_edge.cli.settings import VARIABLE_PREFIX, Settings, schema_of
from starsd_edge.cli.settings_places import is_there, usual_files


def load_settings(
    settings: Settings, context: typer.Context, config: Path | None, environment: Mapping[str, str]
) -> None:
    """Find what files and variables say for the command that is about to run.

    Args:
        settings: takes what is found.
        context: the program's own.
        config: the one file to read; None reads the usual ones that exist.

    What cannot be understood stops only the command that it is meant for, and only once that runs.
    """
    files = [file for file in usual_files(environment) if is_there(file)] if config is None else [config]
    settings.command = context.invoked_subcommand or ""
    settings.files = files
    if not files and not any(name.startswith(VARIABLE_PREFIX) for name in environment):
        return
    from starsd_edge.cli.settings_file import from_file
    from starsd_edge.cli.settings_variables import from_environment, unknown_variables

    schema = schema_of(context)
    for file in files:
        settings.add(from_file(schema, file, settings.faults))
    settings.add(from_environment(schema, environment, settings.faults))
    settings.unknown = unknown_variables(schema, environment)
