"""The options of a command as one frozen object: the only place of their names, help, defaults and checks.

A command's function takes one dataclass. Its fields are arguments and options, `Annotated[type, typer.Option(...)]`,
or groups: dataclasses of such fields, which several commands can share. `as_command` makes of both the function that
typer reads. What typer checks (types, ranges, choices) is said in the annotation; what needs more belongs into the
`__post_init__` of the dataclass that sees it all.

    tuple[str, ...]   may be given several times
    bool              `--name` and `--no-name`, so that a flag can also undo what the environment or a file says
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

Options = TypeVar("Options")

PANEL = "__panel__"
"""Name of a group's class variable with the title over its options in `--help`."""


def as_command(function: Callable[[Options], None], kind: type[Options]) -> Callable[..., None]:
    """The function with a parameter for each option of `kind` in place of its one parameter."""

    def command(**values: Any) -> None:
        function(_assemble(kind, values))

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__signature__ = Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
    return command


def _parameters(kind: type[Any], panel: str | None = None) -> Iterator[Parameter]:
    panel = getattr(kind, PANEL, panel)
    for field, annotation in _annotated_fields(kind):
        if _is_group(annotation):
            yield from _parameters(annotation, panel)
        else:
            yield _parameter(field, annotation, panel)


def _parameter(field: Field[Any], annotation: Any, panel: str | None) -> Parameter:
    plain, info = get_args(annotation)
    info = copy(info)
    info.rich_help_panel = panel
    default = Parameter.empty if field.default is MISSING else field.default
    if _is_repeated(plain):
        plain, default = list[get_args(plain)[0]], None  # type: ignore[misc]  # as typer writes it
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[plain, info])


def _assemble(kind: type[Options], values: dict[str, Any]) -> Options:
    built: dict[str, Any] = {}
    for field, annotation in _annotated_fields(kind):
        if _is_group(annotation):
            built[field.name] = _assemble(annotation, values)
        elif _is_repeated(get_args(annotation)[0]):
            built[field.name] = tuple(values[field.name] or ())
        else:
            built[field.name] = values[field.name]
    return kind(**built)


def _annotated_fields(kind: type[Any]) -> Iterator[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return ((field, hints[field.name]) for field in fields(kind))


def _is_group(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _is_repeated(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,)
