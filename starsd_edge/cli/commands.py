"""A command of the command line that takes its options as one object, and what variables and files set for it.

Options that do not come from the command line become typer's default map: a flag goes before STARSD_* variables, these
before TOML files, these before the program's own defaults. Every value keeps its origin, for `config show` and for
error messages. `settings_files` reads variables and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from starsd_edge.cli.options import OptionField, Options, as_command, option_fields, options_kind
from starsd_edge.errors import UsageError

TRACEBACK_VARIABLE = "STARSD_TRACEBACK"
"""Environment variable: with any value, a fault of this program ends in its traceback."""

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


HOW_TO_SET = (
    "Any option can also be set by a variable, like STARSD_RUN_TARGET_MAX_TOKENS for --max-tokens of run-target, or in "
    "a file (`starsd-edge config show`). Any flag can be undone: --no-FLAG."
)


_DIAGNOSIS = ("doctor",)
"""The command that runs whatever is wrong in files and variables: it is there to find faults."""


class OptionsCommand(TyperCommand):
    """A command whose help names a flag as it changes something: its other name would take the room of the text.

    What is wrong in a file or a variable that was meant for it ends it here, after its `--help`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments.

        Raises:
            UsageError: what files or variables say for it cannot be understood.
        """
        settings = ctx.find_root().obj
        if ctx.resilient_parsing or not isinstance(settings, Settings):
            rest: list[str] = super().parse_args(ctx, args)
            return rest
        path = path_of(ctx)
        fault = settings.fault(path)
        is_for_all = path == _DIAGNOSIS and not settings.faults.get(path)
        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException:
            if fault and not is_for_all:
                raise UsageError(fault) from None
            raise
        for name in settings.unknown:
            typer.echo(f"note: {name} is set, and there is no such option", err=True)
        if fault and not is_for_all:
            raise UsageError(fault)
        if fault:
            typer.echo(f"note: {fault}", err=True)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        named = [(param, param.opts, param.secondary_opts) for param in self.params]
        for param, opts, opposite in named:
            if opposite:
                param.opts, param.secondary_opts = opposite if param.default else opts, []
        super().format_help(ctx, formatter)
        for param, opts, opposite in named:
            param.opts, param.secondary_opts = opts, opposite


def add_command(app: typer.Typer, name: str, function: Callable[[Options], None], kind: type[Options]) -> None:
    """Register a command; see `starsd_edge.cli.options`."""
    app.command(name, cls=OptionsCommand, epilog=HOW_TO_SET)(as_command(function, kind))
