"""S(b, shape): what the hub's drafter takes for a batch of trees, as a model.

    S(b, d, n) = pass_s + d * level_s + b * (session_s + n * node_s)

for b trees of d levels and n nodes each: a launch and a step per level that the batch shares, and what each session and
each node adds. A drafter that is bound by launches has large shared terms (S grows little with b), one that is bound by
arithmetic large ones per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from starsd_edge.speculation.tree import DraftShape


@dataclass(frozen=True)
class DraftCost:
    """The terms, in seconds; none below 0."""

    pass_s: float
    level_s: float = 0.0
    session_s: float = 0.0
    node_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(term >= 0 for term in astuple(self)):
            raise ValueError(f"no cost of drafts: {self}")

    def seconds(self, batch: float, shape: DraftShape) -> float:
        """S of `batch` trees of this shape; 0 where there is nothing to draft."""
        if shape.max_nodes <= 0 or shape.max_depth <= 0:
            return 0.0
        levels, nodes = min(shape.max_depth, shape.max_nodes), shape.max_nodes
        return self.pass_s + levels * self.level_s + batch * (self.session_s + nodes * self.node_s)

    def together(self, shapes: Sequence[DraftShape]) -> float:
        """S of a pass over trees of these shapes: as many levels as the deepest has."""
        levels = max(min(shape.max_depth, shape.max_nodes) for shape in shapes)
        nodes = sum(shape.max_nodes for shape in shapes)
        return self.pass_s + levels * self.level_s + len(shapes) * self.session_s + nodes * self.node_s
