"""Options from elsewhere than the command line: STARSD_* variables first, then TOML files.

They become typer's default map, so a flag goes before all of them and the program's own defaults come last. Every
value remembers where it is from, for `config show` and for what is said of a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from starsd_edge.cli.options import OptionField, option_fields, options_kind

TRACEBACK_VARIABLE = "STARSD_TRACEBACK"
"""Set to anything: a fault of ours ends in its traceback."""

CommandPath = tuple[str, ...]
"""The words of a command: ("run-target",), ("bench", "decode")."""
Schema = Mapping[CommandPath, Sequence[OptionField]]
"""The options of every command."""


@dataclass(frozen=True)
class Setting:
    """A value as it was found.

    Attributes:
        value: text from the environment, a typed value from a file; typer makes it into what the command takes.
        origin: the variable's name or the file's path.
    """

    value: object
    origin: str


Found = dict[CommandPath, dict[str, Setting]]
"""What one source says: the setting of each option by its field's name."""
Faults = dict[CommandPath, str]
"""What is wrong in a source, by the command that it stops; () for what may be meant for any command."""


@dataclass
class Settings:
    """All that was found for one call of the program.

    Attributes:
        files: those that were read.
        command: the first word of the command that runs.
        faults: what is wrong in files and variables.
        unknown: variables that look like ours and are none.
    """

    found: Found = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    command: str = ""
    faults: Faults = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def fault(self, path: CommandPath) -> str:
        """What stops this command; "" for nothing."""
        return "; ".join(text for at, text in self.faults.items() if at == path[: len(at)])

    def add(self, found: Found) -> None:
        """What goes before everything added so far."""
        for path, settings in found.items():
            self.found.setdefault(path, {}).update(settings)

    def origin(self, path: CommandPath, name: str) -> str | None:
        """Where the value of this option is from; None where there is none."""
        setting = self.found.get(path, {}).get(name)
        return None if setting is None else setting.origin

    def origins(self) -> list[str]:
        """Where any option of the command that runs is from."""
        found = (settings.values() for path, settings in self.found.items() if path[0] == self.command)
        return list(dict.fromkeys(setting.origin for settings in found for setting in settings))

    def default_map(self) -> dict[str, Any]:
        """As typer takes it: by the words of the command, then by the option's name."""
        tree: dict[str, Any] = {}
        for path, settings in self.found.items():
            branch = tree
            for word in path:
                branch = branch.setdefault(word, {})
            branch.update({name: setting.value for name, setting in settings.items()})
        return tree


def schema_of(context: typer.Context) -> Schema:
    """The options of every command of the program to which the context belongs."""
    return {path: list(option_fields(kind)) for path, _, kind in commands_of(context.find_root().command)}


def commands_of(command: Any, path: CommandPath = ()) -> Iterator[tuple[CommandPath, Any, type[Any]]]:
    """Every command below a group of typer's that takes its options as an object: its words, itself, the dataclass."""
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_of(each, (*path, name))
    kind = options_kind(command.callback)
    if kind is not None:
        yield path, command, kind


def path_of(context: typer.Context) -> CommandPath:
    """The words of the command that is being run."""
    words: list[str] = []
    at: Any = context
    while at.parent is not None:
        words.insert(0, at.info_name or "")
        at = at.parent
    return tuple(words)
