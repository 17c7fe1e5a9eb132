"""Options from the environment: STARSD_RUN_TARGET_MAX_TOKENS is --max-tokens of run-target.

The words of the command and the option in capitals, joined by underscores. An empty variable is none. An option that
may be given several times takes one value, or a TOML array of them: ["one", "two"].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from starsd_edge import CONFIG_VARIABLE, VARIABLE_PREFIX
from starsd_edge.cli.options import OptionField
from starsd_edge.cli.settings.files import TomlError, expanded, is_there, parse_toml, usual_files
from starsd_edge.cli.settings.values import (
    TRACEBACK_VARIABLE,
    CommandPath,
    Faults,
    Found,
    Schema,
    Setting,
    Settings,
    schema_of,
)
from starsd_edge.errors import UsageError

_OTHERS = (CONFIG_VARIABLE, TRACEBACK_VARIABLE, "STARSD_CACHE")


def variable_name(path: CommandPath, option: OptionField) -> str:
    """The variable of an option."""
    return VARIABLE_PREFIX + "_".join((*path, option.key)).replace("-", "_").upper()


def from_environment(schema: Schema, environment: Mapping[str, str], faults: Faults) -> Found:
    """What it says.

    Args:
        faults: takes what cannot be understood.
    """
    found: Found = {}
    for path, options in schema.items():
        for option in options:
            variable = variable_name(path, option)
            if text := environment.get(variable):
                try:
                    found.setdefault(path, {})[option.name] = Setting(_value(option, text, variable), variable)
                except UsageError as error:
                    faults.setdefault(path, str(error))
    return found


def unknown_variables(schema: Schema, environment: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are none."""
    known = {variable_name(path, option) for path, options in schema.items() for option in options}
    return sorted(
        name for name in environment if name.startswith(VARIABLE_PREFIX) and name not in known and name not in _OTHERS
    )


def _value(option: OptionField, text: str, variable: str) -> object:
    if not option.repeated:
        return expanded(text) if option.type is Path else text
    if not text.lstrip().startswith("["):
        return [text]
    try:
        values = parse_toml(f"values = {text}")["values"]
    except TomlError as error:
        raise UsageError(f"{variable} begins like an array and is none: {error}") from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UsageError(f'{variable} is an array of strings, like ["one", "two"]')
    return values


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
    from starsd_edge.cli.settings.files import from_file

    schema = schema_of(context)
    for file in files:
        settings.add(from_file(schema, file, settings.faults))
    settings.add(from_environment(schema, environment, settings.faults))
    settings.unknown = unknown_variables(schema, environment)
