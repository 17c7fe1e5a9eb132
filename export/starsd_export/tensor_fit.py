"""A checkpoint has the tensors that its configuration speaks of, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starsd_edge.errors import UsageError

_NAMED = 3
"""Tensors named in a message; the rest are counted."""


def require_fit(
    path: Any,
    place: str,
    missing: Iterable[str],
    mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]],
    unexpected: Iterable[str],
) -> None:
    """Refuse a checkpoint whose tensors are not those of its configuration.

    Args:
        path: of the checkpoint, for the message.
        place: what its tensors are to have a place in.
        mismatched: name, shape and wanted shape.

    Raises:
        UsageError: names the tensors.
    """
    shapes = (f"{name} {list(given)} instead of {list(wanted)}" for name, given, wanted in mismatched)
    problems = [
        *_problem("lacks", missing),
        *_problem("has in another shape than its configuration says", shapes),
        *_problem(f"has, without a place in {place},", unexpected),
    ]
    if problems:
        raise UsageError(f"{path} does not fit its configuration: it {'; it '.join(problems)}")


def _problem(what: str, names: Iterable[str]) -> list[str]:
    names = sorted(names)
    if not names:
        return []
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what} {', '.join(names[:_NAMED])}{rest}"]
