"""The options of `bench drafts`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.errors import UsageError

_TREE = re.compile(r"(\d+)x(\d+)x(\d+)\Z")


@dataclass(frozen=True, kw_only=True)
class BenchDraftsOptions:
    """The options of the command.

    Raises:
        UsageError: a tree is not written as three numbers.
    """

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    draft: Annotated[
        str, typer.Option(help="Bundle of the draft head or model.", autocompletion=bundle_names, show_default=False)
    ]
    prompts: Annotated[
        Path | None,
        typer.Option(help="File with one prompt per line; without it, those shipped for this.", show_default=False),
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Use so many prompts only.", show_default=False)] = None
    new_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of every answer.")] = 128
    temperature: Annotated[tuple[float, ...], typer.Option(help="Of the answers; may be given several times.")] = (
        0.0,
        1.0,
    )
    tree: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft; may be given several times."),
    ] = ("4x4x1", "8x5x3", "32x6x8")
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads of every engine.", show_default=False)
    ] = None
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.", show_default=False)] = None

    def __post_init__(self) -> None:
        tree_shapes(self.tree)

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Nodes, depth and branching of each tree."""
        return tree_shapes(self.tree)


def tree_shapes(trees: Sequence[str]) -> list[tuple[int, int, int]]:
    """Nodes, depth and branching of trees as they are written.

    Raises:
        UsageError: one is not written as three numbers.
    """
    shapes = []
    for tree in trees:
        match = _TREE.match(tree)
        if match is None:
            raise UsageError(f"--tree takes NODESxDEPTHxBRANCHING, like 8x5x3, not {tree!r}")
        shapes.append((int(match[1]), int(match[2]), int(match[3])))
    return shapes
