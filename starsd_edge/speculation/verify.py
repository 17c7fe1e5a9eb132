"""Verification: the target walks the draft tree with its own choices.

At each visited node the target chooses its own next token; when that token is among the node's children it steps into
it, else the token is the bonus and the round ends. Every emitted token is the target's own choice under its own prefix,
so nothing in the tree can change the text. Rejected siblings cost no correction of the distribution, because the coin
does not depend on the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starsd_edge.errors import EngineError
from starsd_edge.speculation.sampling import Choice
from starsd_edge.speculation.tree import ROOT, DraftTree

Row = TypeVar("Row")
RowOut = TypeVar("RowOut", covariant=True)


class Rows(Protocol[RowOut]):
    """What has rows: an array of logits, or a range of their numbers."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, index: int, /) -> RowOut:
        """The row of this number."""


@dataclass(frozen=True)
class Verdict:
    """What one verification gave; the three lists have the same length, at least 1.

    Attributes:
        rows: rows of the verify pass whose KV is to be committed: the root's row 0, then those of the accepted nodes,
            in order.
        tokens: the accepted tokens, then the bonus token.
        margins: how close each of these choices was (see `Choice`).
    """

    rows: list[int]
    tokens: list[int]
    margins: list[float]

    @property
    def accepted(self) -> int:
        """Draft tokens that the target chose too: the bonus token is not among them."""
        return len(self.tokens) - 1


def verify(
    tree: DraftTree,
    rows: Rows[Row],
    base_len: int,
    choose: Callable[[Row, int, Sequence[int]], Choice],
) -> Verdict:
    """Walk the tree from the root as far as the target's own choices lead.

    Args:
        tree: what was verified.
        rows: n + 1 of them, row 0 for the root, row i + 1 for node i: logits float32 [n + 1, V], or whatever else
            `choose` takes for a row of them.
        base_len: committed tokens, which is the position of the root; a node at depth d stands at base_len + d.
        choose: gives the token of a position from the logits of the one before it and the path to it: the tokens that
            follow the root in this walk (`Sampler.choose`).

    Raises:
        EngineError: there is another number of rows than the tree asks for.
    """
    if len(rows) != len(tree) + 1:
        raise EngineError(f"the engine gave {len(rows)} rows of logits for a verify pass of {len(tree) + 1}")
    node = ROOT
    verdict = Verdict([], [], [])
    while True:
        row = node + 1
        choice = choose(rows[row], base_len + len(verdict.rows) + 1, verdict.tokens)
        verdict.rows.append(row)
        verdict.tokens.append(choice.token)
        verdict.margins.append(choice.margin)
        child = tree.children.get(node, {}).get(choice.token)
        if child is None:
            return verdict
        node = child
