"""EAGLE-2's dynamic draft tree (arXiv 2406.16858, section 4): grow the likeliest nodes level by level, then keep the
best of all that were seen.

A node's score is the sum of log-probabilities along its path, so no child beats its parent; where they are equal the
shallower node counts as better. The best n nodes therefore always hold their ancestors, and so does every tree here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree
from starsd_server.drafters.spine import Candidates


@dataclass(frozen=True)
class Node:
    """A guessed token.

    Attributes:
        index: its place in the order of growth.
        parent: that of its parent, `ROOT` for none.
    """

    index: int
    parent: int
    token: int
    level: int
    score: float


_ROOT_NODE = Node(ROOT, ROOT, 0, 0, 0.0)

Expand = Callable[[Sequence[Node]], Sequence[Candidates]]
"""Nodes of one level to the candidates below each of them; called level by level, the likeliest nodes first."""


def grow_dynamic(shape: DraftShape, width: int, first: Candidates, expand: Expand) -> DraftTree:
    """The tree under the root.

    Args:
        width: most nodes expanded on one level (EAGLE-2's k).
        first: candidates below the root.
        expand: called at most `shape.max_depth` - 1 times; not at all where nothing below could be kept.
    """
    if min(shape.max_nodes, shape.max_depth, shape.branching) < 1:
        return DraftTree.empty()
    pool = _children([first], [_ROOT_NODE], shape.branching, 0)
    level = pool
    while level and level[0].level < shape.max_depth:
        parents = [node for node in sorted(level, key=_rank)[:width] if _still_counts(pool, node, shape.max_nodes)]
        level = _children(expand(parents), parents, shape.branching, len(pool)) if parents else []
        pool = pool + level
    return _preorder(sorted(pool, key=_rank)[: shape.max_nodes])


def _children(below: Sequence[Candidates], parents: Sequence[Node], branching: int, first_index: int) -> list[Node]:
    found = [
        (parent, int(token), min(0.0, float(log_p)))
        for candidates, parent in zip(below, parents, strict=True)
        for token, log_p in zip(candidates.tokens[:branching], candidates.scores[:branching], strict=True)
    ]
    return [
        Node(index, parent.index, token, parent.level + 1, parent.score + log_p)
        for index, (parent, token, log_p) in enumerate(found, first_index)
    ]


def _rank(node: Node) -> tuple[float, int, int]:
    return (-node.score, node.level, node.index)


def _still_counts(pool: Sequence[Node], parent: Node, max_nodes: int) -> bool:
    """Whether a child of this node, no likelier than itself, can be among the best `max_nodes`."""
    return sum(node.score >= parent.score for node in pool) < max_nodes


def _preorder(kept: Sequence[Node]) -> DraftTree:
    """Depth-first, children by falling score. `kept` is in that order and holds every node's ancestors."""
    children: dict[int, list[Node]] = {}
    for node in kept:
        children.setdefault(node.parent, []).append(node)
    tokens: list[int] = []
    parents: list[int] = []
    waiting = [(node, ROOT) for node in reversed(children.get(ROOT, []))]
    while waiting:
        node, parent = waiting.pop()
        waiting.extend((child, len(tokens)) for child in reversed(children.get(node.index, [])))
        tokens.append(node.token)
        parents.append(parent)
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int32))
