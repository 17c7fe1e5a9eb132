"""`starsd-edge config`: where options come from, and what they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from starsd_edge.cli.commands import HOW_TO_SET, CommandPath, Settings, commands_of
from starsd_edge.cli.near_misses import CommandGroup
from starsd_edge.cli.options import assemble, option_fields
from starsd_edge.cli.settings_files import described, toml_value
from starsd_edge.errors import UsageError, did_you_mean


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(cls=CommandGroup, help="Show options that files and the environment set.", no_args_is_help=True)
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
    from starsd_edge.cli.settings_files import usual_files

    settings: Settings = context.obj
    for file in settings.files:
        typer.echo(file)
    if not settings.files:
        places = ", ".join(str(place) for place in usual_files(os.environ))
        typer.echo(f"there is none; looked for: {places}", err=True)


_WIDTH = 79
_COLUMN = 34
"""Column in which the origins begin, where the value leaves room."""
_DEFAULT = "default"
_REQUIRED = "required argument"


@dataclass(frozen=True)
class Shown:
    """One option.

    Attributes:
        value: None where there is none.
        origin: a variable, a file, `default` or `required argument`.
    """

    key: str
    value: object
    origin: str


@dataclass(frozen=True)
class ShownCommand:
    """All options of a command.

    Attributes:
        fault: why they do not go together, "" where they do.
    """

    options: Sequence[Shown]
    fault: str


Report = Mapping[CommandPath, ShownCommand]


def gather(context: typer.Context, settings: Settings, wanted: CommandPath) -> Report:
    """Every option of the commands that begin with these words.

    Raises:
        UsageError: there is no such command.
        typer.TyperException: a value is wrong.
    """
    root = context.find_root()
    wanted = tuple(word for each in wanted for word in each.split("."))
    commands = list(commands_of(root.command))
    report = {
        path: _options_of(root, path, command, kind, settings)
        for path, command, kind in commands
        if path[: len(wanted)] == wanted
    }
    if not report:
        known = [" ".join(path) for path, _, _ in commands]
        name = " ".join(wanted)
        meant = did_you_mean(name, known) or f": there are {', '.join(known)}"
        raise UsageError(f"no command {name!r} has options{meant}")
    return report


def as_toml(report: Report) -> Iterator[str]:
    """Lines of a configuration file; options without a value are comments."""
    for number, (path, command) in enumerate(report.items()):
        if number:
            yield ""
        yield f"[{'.'.join(path)}]"
        for option in command.options:
            yield from _toml_lines(option)


def as_object(report: Report, files: Sequence[Path]) -> dict[str, Any]:
    """For JSON."""
    return {
        "files": [str(file) for file in files],
        "commands": {
            ".".join(path): {option.key: {"value": option.value, "origin": option.origin} for option in command.options}
            for path, command in report.items()
        },
    }


def _options_of(root: Any, path: CommandPath, command: Any, kind: type[Any], settings: Settings) -> ShownCommand:
    """As typer would give them to the command if no argument followed its name."""
    context = root
    for name in path:
        context = typer.Context(command, parent=context, info_name=name)
    options = list(option_fields(kind))
    parameters = {parameter.name: parameter for parameter in command.params}
    values: dict[str, Any] = {}
    for option in options:
        parameter = parameters[option.name]
        value, source = parameter.consume_value(context, {})
        context.set_parameter_source(option.name, source)
        is_missing = parameter.required and value is None
        values[option.name] = None if is_missing else _processed(parameter, context, value)
    missing = {name: "" for name, value in values.items() if value is None and parameters[name].required}
    shown = [
        Shown(
            option.key,
            _plain(values[option.name]),
            _REQUIRED if option.name in missing else settings.origin(path, option.name) or _DEFAULT,
        )
        for option in options
    ]
    return ShownCommand(shown, _fault(kind, {**values, **missing}))


def _fault(kind: type[Any], values: Mapping[str, Any]) -> str:
    try:
        assemble(kind, values)
    except UsageError as error:
        return str(error)
    return ""


def _processed(parameter: Any, context: Any, value: object) -> object:
    try:
        return parameter.process_value(context, value)
    except typer.BadParameter as error:
        error.ctx, error.param = context, parameter
        raise


def _plain(value: object) -> object:
    """As TOML and JSON write it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value] or None
    return value


def _toml_lines(option: Shown) -> Iterator[str]:
    entry = f"# {option.key} =" if option.value is None else f"{option.key} = {toml_value(option.value)}"
    is_unset = option.value is None and option.origin == _DEFAULT
    origin = f"# {'not set' if is_unset else described(Path(option.origin))}"
    line = f"{entry:<{_COLUMN}} {origin}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield origin
    yield entry
