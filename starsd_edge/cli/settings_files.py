"""Options from TOML files and from the environment. A file has a table for each command, its long options as keys:

    [run-target]
    hub = "ws://desk:8317"
    token-file = "hub.token"      # beside this file
    stop = ["User:", "\\n\\n"]

    [bench.decode]
    repeats = 3

There is no key for a secret: only for the path of a file that holds one.

In the environment, STARSD_RUN_TARGET_MAX_TOKENS is --max-tokens of run-target: the words of the command and the option
in capitals, joined by underscores. An empty variable sets nothing. An option that may be given several times takes one
value, or a TOML array of them: ["one", "two"].
"""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from starsd_edge import CONFIG_VARIABLE, VARIABLE_PREFIX
from starsd_edge.cli.commands import (
    TRACEBACK_VARIABLE,
    CommandPath,
    Faults,
    Found,
    Schema,
    Setting,
    Settings,
    schema_of,
)
from starsd_edge.cli.options import OptionField
from starsd_edge.errors import UsageError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TomlError(ValueError):
    """Text that is not TOML; says what and where."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables.

    Raises:
        TomlError: it is not TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise TomlError("it is nested too deeply") from None
    except ValueError as error:  # the library's own, or a number or date that Python cannot hold
        raise TomlError(str(error)) from None
    return tables


def toml_value(value: object) -> str:
    """A string, number, truth value or list of them as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf, -inf
    written = json.dumps(value, ensure_ascii=False)
    # Beyond JSON's own, TOML wants DEL escaped, and a terminal the rest of the control characters.
    return "".join(f"\\u{ord(each):04x}" if unicodedata.category(each) == "Cc" else each for each in written)


SYSTEM_FILE = Path("/etc/starsd-edge/config.toml")


def usual_files(environment: Mapping[str, str]) -> list[Path]:
    """Where files are looked for, the one that goes before the other last."""
    xdg = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not xdg.is_absolute():  # the XDG rules say to ignore a relative one
        xdg = Path(expanded("~/.config"))
    return [SYSTEM_FILE, *([xdg / "starsd-edge" / "config.toml"] if xdg.is_absolute() else [])]


def is_there(file: Path) -> bool:
    """Whether there is such a file, as far as this user may know."""
    try:
        return file.exists()
    except (OSError, ValueError):  # a directory that may not be entered, a name that no file can have
        return False


def expanded(path: str) -> str:
    """A path with a home directory in the place of its ~; as it is where nobody knows that directory."""
    return os.path.expanduser(path)  # noqa: PTH111 (unlike Path's, it does not mind an unknown home)


def described(file: Path) -> str:
    """A path as people write it, with ~ for their home directory."""
    home = expanded("~")
    text = str(file)
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text


_SHOWN = 40
_EXPECTED: dict[type[Any], str] = {bool: "true or false", int: "a whole number", float: "a number"}


def from_file(schema: Schema, file: Path, faults: Faults) -> Found:
    """What a file says.

    Args:
        faults: takes what cannot be understood.
    """
    found: Found = {}
    try:
        _Reader(schema, file, found, faults).read((), read_toml(file, "the configuration"))
    except UsageError as error:
        faults.setdefault((), str(error))
    return found


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """The tables of a file.

    Args:
        what: the file holds, as in "the configuration", for the message where it cannot be read.

    Raises:
        UsageError: it cannot be read, or is no TOML.
    """
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start}): convert it") from None
    except TomlError as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    except ValueError as error:  # no file can have such a name
        raise UsageError(f"{what} {str(file)!r} cannot be read: {error}") from None


class _Reader:
    """Goes through the tables of one file."""

    def __init__(self, schema: Schema, file: Path, found: Found, faults: Faults) -> None:
        self._schema = schema
        self._file = file
        self._found = found
        self._faults = faults

    def read(self, path: CommandPath, table: Mapping[str, Any]) -> None:
        """Take a table and those below it."""
        options = self._schema.get(path)
        if options is not None:
            try:
                self._found[path] = {option.name: setting for option, setting in self._settings(path, options, table)}
            except UsageError as error:
                self._faults.setdefault(path, str(error))
            return
        below = sorted({known[len(path)] for known in self._schema if known[: len(path)] == path})
        for name, inner in table.items():
            try:
                self._read_below(path, name, inner, below)
            except UsageError as error:
                self._faults.setdefault(path, str(error))

    def _read_below(self, path: CommandPath, name: str, inner: Any, below: Sequence[str]) -> None:
        here = (*path, name)
        if not isinstance(inner, Mapping):
            raise self._error(f"{'.'.join(here)} belongs into the table of a command{self._tables_with(path, name)}")
        if name not in below:
            meant = did_you_mean(name, below, lambda each: f"[{'.'.join((*path, each))}]")
            raise self._error(f"no command has the table [{'.'.join(here)}]{meant}")
        self.read(here, inner)

    def _settings(
        self, path: CommandPath, options: Sequence[OptionField], table: Mapping[str, Any]
    ) -> Iterable[tuple[OptionField, Setting]]:
        by_key = {option.key: option for option in options}
        for key, value in table.items():
            option = by_key.get(key)
            if option is None:
                raise self._error(f"[{'.'.join(path)}] has no key {key!r}{did_you_mean(key, by_key)}")
            if not _fits(value, option):
                raise self._error(f"[{'.'.join(path)}] {key} must be {_expected(option)}, not {_shown(value)}")
            yield option, Setting(self._resolved(value, option), str(self._file))

    def _resolved(self, value: Any, option: OptionField) -> object:
        """Paths are meant from where the file is; - is standard input."""
        if option.type is not Path or value == "-":
            return value
        return str(self._file.absolute().parent / expanded(value))

    def _tables_with(self, path: CommandPath, key: str) -> str:
        tables = [
            f"[{'.'.join(known)}]"
            for known, options in self._schema.items()
            if known[: len(path)] == path and any(option.key == key for option in options)
        ]
        return f": {' or '.join(tables)}" if tables else ""

    def _error(self, message: str) -> UsageError:
        return UsageError(f"{self._file}: {message}")


def _fits(value: Any, option: OptionField) -> bool:
    if option.repeated:
        return isinstance(value, list) and all(_is_one(each, option.type) for each in value)
    return _is_one(value, option.type)


def _is_one(value: Any, kind: type[Any]) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, int if kind is int else str)


def _expected(option: OptionField) -> str:
    if option.repeated:
        return "an array of strings"
    if issubclass(option.type, Enum):
        return f"one of {', '.join(each.value for each in option.type)}"
    return _EXPECTED.get(option.type, "a string")


def _shown(value: object) -> str:
    if not isinstance(value, str | bool | int | float):
        return "a table" if isinstance(value, Mapping) else "an array" if isinstance(value, list) else "a date or time"
    text = toml_value(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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

    schema = schema_of(context)
    for file in files:
        settings.add(from_file(schema, file, settings.faults))
    settings.add(from_environment(schema, environment, settings.faults))
    settings.unknown = unknown_variables(schema, environment)
