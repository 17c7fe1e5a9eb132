"""A dataclass becomes the options of a command."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import typer

from starsd_edge.cli import main
from starsd_edge.cli.commands import add_command
from starsd_edge.cli.options import check_seconds, option_fields
from starsd_edge.errors import UsageError
from tests.support.command_line import CommandLine


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Paint:
    __panel__: ClassVar[str] = "Paint"

    colour: Annotated[tuple[Colour, ...], typer.Option(help="Of it.")] = ()
    layers: Annotated[tuple[str, ...], typer.Option(help="From the wall outwards.")] = ("primer", "paint")
    coats: Annotated[int, typer.Option(min=1, help="How many.")] = 2
    dry: Annotated[bool, typer.Option(help="Wait until it is dry.", show_default=False)] = False


@dataclass(frozen=True, kw_only=True)
class WallOptions:
    wall: Annotated[str, typer.Argument(help="Which wall.")]
    paint: Paint
    plaster: Annotated[bool, typer.Option(help="Leave it bare.", show_default=False)] = True
    plan: Annotated[Path | None, typer.Option("--plan-file", "-p", help="A drawing.")] = None

    def __post_init__(self) -> None:
        if self.paint.dry and not self.paint.colour:
            raise UsageError("--dry needs paint: give a --colour")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[WallOptions]:
    """What the command was given."""
    done: list[WallOptions] = []

    def build() -> typer.Typer:
        def wall(options: WallOptions) -> None:
            """Make a wall."""
            done.append(options)

        app = typer.Typer()
        app.callback()(lambda: None)
        add_command(app, "wall", wall, WallOptions)
        return app

    monkeypatch.setattr(main, "build_app", build)
    return done


def test_the_command_gets_one_object_with_every_default(cli: CommandLine, done: list[WallOptions]) -> None:
    assert cli("wall", "north").code == 0
    assert done == [WallOptions(wall="north", paint=Paint(colour=(), coats=2, dry=False), plaster=True, plan=None)]
    with pytest.raises(FrozenInstanceError):
        done[0].wall = "south"  # type: ignore[misc]


def test_options_reach_their_group_and_their_type(cli: CommandLine, done: list[WallOptions]) -> None:
    given = ("--colour", "red", "--colour", "blue", "--coats", 3, "--dry", "--no-plaster", "-p", "x/y")
    assert cli("wall", "north", *given).code == 0
    paint = Paint(colour=(Colour.RED, Colour.BLUE), coats=3, dry=True)
    assert done == [WallOptions(wall="north", paint=paint, plaster=False, plan=Path("x/y"))]


def test_the_last_of_a_flag_and_its_opposite_counts(cli: CommandLine, done: list[WallOptions]) -> None:
    assert cli("wall", "north", "--no-plaster", "--plaster", "--dry", "--no-dry").code == 0
    assert (done[0].plaster, done[0].paint.dry) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--coats", "0"], "--coats"),
        (["--coats", "two"], "--coats"),
        (["--colour", "green"], "'green' is not one of 'red', 'blue'"),
        (["--dry"], "--dry needs paint"),
    ],
)
def test_what_cannot_be_is_one_line(cli: CommandLine, done: list[WallOptions], arguments: list[str], says: str) -> None:
    assert says in cli.refused("wall", "north", *arguments)
    assert done == []


def test_help_has_a_panel_for_a_group_and_names_flags_as_they_change_something(
    cli: CommandLine, done: list[WallOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("wall", "--help").out
    assert "Make a wall." in shown
    assert "─ Paint ─" in shown
    assert "--dry" in shown
    assert "--no-dry" not in shown
    assert "--no-plaster" in shown
    assert "--plaster" not in shown
    assert "--no-FLAG" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert cli("wall", "--help").out == shown


def test_keys_are_the_long_names() -> None:
    fields = {field.name: (field.key, field.type, field.repeated) for field in option_fields(WallOptions)}
    assert fields == {
        "wall": ("wall", str, False),
        "colour": ("colour", Colour, True),
        "layers": ("layers", str, True),
        "coats": ("coats", int, False),
        "dry": ("dry", bool, False),
        "plaster": ("plaster", bool, False),
        "plan": ("plan-file", Path, False),
    }


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_duration_ends(seconds: float) -> None:
    check_seconds("--wait", 1.5)
    check_seconds("--wait", None)
    with pytest.raises(UsageError, match="--wait is a number of seconds"):
        check_seconds("--wait", seconds)


def commands_with_options() -> list[Any]:
    from typer.main import get_command

    from starsd_edge.cli.commands import commands_of

    return list(commands_of(get_command(main.build_app())))


@pytest.mark.parametrize("command", commands_with_options(), ids=lambda each: ".".join(each[0]))
def test_no_two_options_of_a_command_share_a_key_and_every_one_has_help(command: Any) -> None:
    _, typer_command, kind = command
    keys = [field.key for field in option_fields(kind)]
    assert len(set(keys)) == len(keys)
    assert all(parameter.help for parameter in typer_command.params)


@pytest.mark.parametrize("command", commands_with_options(), ids=lambda each: ".".join(each[0]))
def test_every_flag_can_be_undone(command: Any) -> None:
    path, typer_command, kind = command
    flags = {field.name for field in option_fields(kind) if field.type is bool}
    for parameter in typer_command.params:
        if parameter.name in flags:
            assert parameter.secondary_opts, f"{' '.join(path)} {parameter.opts[0]}"


def test_a_list_has_its_default_until_it_is_given(cli: CommandLine, done: list[WallOptions]) -> None:
    assert cli("wall", "north").code == 0
    assert cli("wall", "north", "--layers", "wax").code == 0
    assert [options.paint.layers for options in done] == [("primer", "paint"), ("wax",)]
    assert "primer" in cli("wall", "--help").out
