"""What the real bindings say of their own functions: pybind's docstrings, and the signatures of cuda-python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_QUALIFIED = re.compile(r"(?:\w+(?:::\w+)*[.:]+)+(?=\w)")


@dataclass(frozen=True)
class Signature:
    """One way of calling a function.

    Attributes:
        parameters: their names, without `self`.
        optional: how many of the last ones may be left out.
        returns: the type, without modules.
    """

    parameters: tuple[str, ...]
    optional: int
    returns: str


def pybind_signatures(function: Any) -> list[Signature]:
    """All overloads of a function, from its docstring."""
    name = function.__name__
    line = re.compile(rf"^\s*(?:\d+\. )?{re.escape(name)}\((.*)\) -> (.+?)\s*$", re.MULTILINE)
    return [_signature(*found.groups()) for found in line.finditer(function.__doc__ or "")]


def plain_type(text: str) -> str:
    """A type without modules and without None, in one spelling."""
    bare = _QUALIFIED.sub("", text.replace("Optional", "").strip())
    return bare.replace(" | None", "").lower()


def _signature(parameters: str, returns: str) -> Signature:
    parts = [part for part in _split(parameters) if part and not part.startswith("self")]
    names = tuple(re.split(r"[:=]", part, maxsplit=1)[0].strip() for part in parts)
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
