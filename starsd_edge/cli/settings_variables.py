"""Options from the environment: STARSD_RUN_TARGET_MAX_TOKENS is --max-tokens of run-target.

The words of the command and the option in capitals, joined by underscores. An empty variable is none. An option that
may be given several times takes one value, or a TOML array of them: ["one", "two"].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starsd_edge.cli.options import OptionField
from starsd_edge.cli.settings import (
    CONFIG_VARIABLE,
    TRACEBACK_VARIABLE,
    VARIABLE_PREFIX,
    CommandPath,
    Faults,
    Found,
    Schema,
    Setting,
)
from starsd_edge.cli.settings_places import expanded
from starsd_edge.cli.toml import TomlError, parse_toml
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
