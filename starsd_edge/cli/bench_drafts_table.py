"""The table of `bench drafts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from starsd_edge.cli.bench_drafts import Row

_WIDTH = 80


def show_rows(rows: Sequence[Row], console: Console) -> None:
    """One line for each temperature and tree, then what the columns mean."""
    table = Table(box=None, pad_edge=False, width=_WIDTH)
    for heading in ("T", "tree", "texts", "tokens/ round", "accept./ round", "survival by level", "int8 features"):
        table.add_column(heading, justify="left" if heading.startswith(("tree", "surv")) else "right")
    for row in rows:
        table.add_row(
            f"{row.temperature:g}",
            row.tree,
            str(row.texts),
            f"{row.stats.tokens_per_round:.2f}",
            f"{row.stats.accepted_per_round:.2f}",
            " ".join(f"{share:.2f}" for share in row.stats.survival),
            _int8(row),
        )
    console.print(table)
    for row in rows:
        if row.looping_texts:
            console.print(
                f"T {row.temperature:g}, {row.tree}: {row.looping_texts} texts that loop are not counted above; "
                f"tokens_per_round {row.looping.tokens_per_round:.2f}"
            )
    console.print(
        "tree: nodes x depth x branching, at most; int8: change of the mean tokens of a round against float16, over "
        "every token as a start, with its 95 % interval"
    )


def _int8(row: Row) -> str:
    if row.int8 is None:
        return "-"
    return f"{100 * row.int8.change:+.1f} % ({100 * row.int8.low:+.1f} to {100 * row.int8.high:+.1f})"
