"""Finding the settings of one call: which files, then the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from starsd_edge.cli.settings import VARIABLE_PREFIX, Found, Settings, schema_of
from starsd_edge.cli.settings_places import usual_files


def load_settings(
    settings: Settings, context: typer.Context, config: Path | None, environment: Mapping[str, str]
) -> None:
    """Find what files and variables say for the command that is about to run.

    Args:
        settings: takes what is found.
        context: the program's own.
        config: the one file to read; None reads the usual ones that exist.

    Raises:
        UsageError: a file or a variable cannot be understood.
    """
    files = [file for file in usual_files(environment) if file.exists()] if config is None else [config]
    found: list[Found] = []
    if files or any(name.startswith(VARIABLE_PREFIX) for name in environment):
        from starsd_edge.cli.settings_file import from_file
        from starsd_edge.cli.settings_variables import from_environment

        schema = schema_of(context)
        found = [*(from_file(schema, file) for file in files), from_environment(schema, environment)]
    settings.command = context.invoked_subcommand or ""
    settings.files = files
    for each in found:
        settings.add(each)
