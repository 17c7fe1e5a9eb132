"""The options of a command as one frozen object: the only place of their names, help, defaults and checks.

A command's function takes one dataclass. Its fields are arguments and options, `Annotated[type, typer.Option(...)]`,
or groups: dataclasses of such fields, which several commands can share. `as_command` makes of both the function that
typer reads. What typer checks (types, ranges, choices) is said in the annotation; what needs more belongs into the
`__post_init__` of the dataclass that sees it all.

    tuple[str, ...]   may be given several times
    bool              `--name` and `--no-name`, so that a flag can also undo what the environment or a file says
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from inspect import Parameter, Signature
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from starsd_edge.errors import UsageError

Options = TypeVar("Options")

MAX_THREADS = 256
"""Most threads of an engine: a much larger pool takes all of a machine before it has done anything."""
PANEL = "__panel__"
"""Name of a group's class variable with the title over its options in `--help`."""
_KIND = "options_kind"


@dataclass(frozen=True)
class OptionField:
    """One option or argument.

    Attributes:
        name: of the field, and of typer's parameter.
        key: as users write it: the long option without its dashes, or the argument's name.
        type: of one value.
        repeated: whether it may be given several times.
        parameter: for typer.
    """

    name: str
    key: str
    type: type[Any]
    repeated: bool
    parameter: Parameter


def as_command(function: Callable[[Options], None], kind: type[Options]) -> Callable[..., None]:
    """The function with a parameter for each option of `kind` in place of its one parameter."""

    def command(**values: Any) -> None:
        function(assemble(kind, values))

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__signature__ = Signature([field.parameter for field in option_fields(kind)])  # type: ignore[attr-defined]
    setattr(command, _KIND, kind)
    return command


def options_kind(command: object) -> type[Any] | None:
    """The dataclass behind a function that `as_command` made, or behind one that wraps it."""
    return getattr(command, _KIND, None)


def option_fields(kind: type[Any], panel: str | None = None) -> Iterator[OptionField]:
    """All options of a dataclass, those of its groups in their place."""
    panel = getattr(kind, PANEL, panel)
    for field, annotation in _annotated_fields(kind):
        if _is_group(annotation):
            yield from option_fields(annotation, panel)
        else:
            yield _option_field(field, annotation, panel)


def assemble(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """The object, from the value of each option by its name.

    Raises:
        UsageError: the values do not go together.
    """
    built: dict[str, Any] = {}
    for field, annotation in _annotated_fields(kind):
        if _is_group(annotation):
            built[field.name] = assemble(annotation, values)
        elif _is_repeated(get_args(annotation)[0]):
            built[field.name] = tuple(values[field.name] or ())
        else:
            built[field.name] = values[field.name]
    return kind(**built)


def check_seconds(option: str, seconds: float | None) -> None:
    """A duration must end: typer's own check lets `nan` and `inf` through.

    Raises:
        UsageError: it is no finite number.
    """
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(f"{option} is a number of seconds, not {seconds}")


def _option_field(field: Field[Any], annotation: Any, panel: str | None) -> OptionField:
    written, info = get_args(annotation)
    info = copy(info)
    info.rich_help_panel = panel
    default = Parameter.empty if field.default is MISSING else field.default
    repeated = _is_repeated(written)
    one = get_args(written)[0] if repeated else _without_none(written)
    if repeated:
        written = list[one]  # type: ignore[valid-type]  # as typer writes it
        default = None if field.default in (MISSING, ()) else list(field.default)
    if one is bool or default is None:
        info.show_default = False  # the help says what no value means, and names a flag as it changes something
    parameter = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[written, info])
    return OptionField(field.name, _key(field.name, info), one, repeated, parameter)


def _key(name: str, info: Any) -> str:
    """The longest of the declared names, which typer takes from the field's name where none is declared."""
    declared = [info.default, *(info.param_decls or ())]  # in `Annotated`, the first stands where a default would
    dashed = [text for text in declared if isinstance(text, str) and text.startswith("--")]
    return max(dashed, key=len, default=name.replace("_", "-")).partition("/")[0].removeprefix("--")


def _annotated_fields(kind: type[Any]) -> tuple[tuple[Field[Any], Any], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((field, hints[field.name]) for field in fields(kind))


def _is_group(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _is_repeated(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,)


def _without_none(annotation: Any) -> Any:
    """T of `T | None`."""
    return next((part for part in get_args(annotation) if part is not NoneType), annotation)
