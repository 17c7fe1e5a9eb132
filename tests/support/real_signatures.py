"""What the real bindings of TensorRT say of themselves: pybind writes every overload of a function into its docstring.

`python -m tests.support.real_signatures MODULE` prints it as JSON, so that versions of which a process loads one can be
asked in a process each.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import msgspec

CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext")
_QUALIFIED = re.compile(r"(?:\w+(?:::\w+)*[.:]+)+(?=\w)")


class Signature(msgspec.Struct, frozen=True):
    """One way of calling a function."""

    parameters: list[str]
    """Their names, without `self`."""
    optional: int
    """How many of the last ones may be left out."""
    returns: str
    """Type, without modules."""


class Member(msgspec.Struct, frozen=True):
    """A property, or a function with its overloads."""

    is_property: bool
    is_writable: bool = False
    overloads: list[Signature] = []


class Surface(msgspec.Struct, frozen=True):
    """What a module shows."""

    version: str
    names: list[str]
    classes: dict[str, dict[str, Member]]
    enumerations: dict[str, dict[str, int]]


def surface_of(module: Any) -> Surface:
    """Of real bindings."""
    kinds = {name: getattr(module, name) for name in dir(module)} | {"Severity": module.ILogger.Severity}
    numbers = {
        name: {member: int(value) for member, value in kind.__members__.items()}
        for name, kind in kinds.items()
        if isinstance(getattr(kind, "__members__", None), dict)
    }
    classes = {name: {each: _member(getattr(kinds[name], each)) for each in dir(kinds[name])} for name in CLASSES}
    return Surface(module.__version__, dir(module), classes, numbers)


def plain_type(text: str) -> str:
    """A type without modules and without None, in one spelling."""
    bare = _QUALIFIED.sub("", text.replace("Optional", "").strip())
    return bare.replace(" | None", "").lower()


def pybind_signatures(name: str, documentation: str) -> list[Signature]:
    """All overloads of a function."""
    line = re.compile(rf"^\s*(?:\d+\. )?{re.escape(name)}\((.*)\) -> (.+?)\s*$", re.MULTILINE)
    return [_signature(*found.groups()) for found in line.finditer(documentation)]


def _member(thing: Any) -> Member:
    if isinstance(thing, property):
        return Member(is_property=True, is_writable=thing.fset is not None)
    name = getattr(thing, "__name__", "")
    return Member(is_property=False, overloads=pybind_signatures(name, getattr(thing, "__doc__", None) or ""))


def _signature(parameters: str, returns: str) -> Signature:
    parts = [part for part in _split(parameters) if part and not part.startswith("self")]
    names = [re.split(r"[:=]", part, maxsplit=1)[0].strip() for part in parts]
    return Signature(names, sum(" = " in part for part in parts), plain_type(returns))


def _split(text: str) -> list[str]:
    """At the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[<(") - (character in "]>)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(surface_of(importlib.import_module(sys.argv[1]))))
