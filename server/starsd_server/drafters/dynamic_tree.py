"""EAGLE-2's dynamic draft tree (arXiv 2406.16858, section 4): grow the likeliest nodes level by level, then keep the
best of all that were seen.

A node's score is the sum of log-probabilities along its path, so no child beats its parent; where they are equal the
shallower node counts as better. The best n nodes therefore always hold their ancestors, and so does every tree here.

Trees of several sessions grow in step, so that one pass of a head serves a level of all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree


class Node(NamedTuple):
    """A guessed token.

    Attributes:
        number: its place in the order of growth.
        parent: that of its parent, `ROOT` for none.
    """

    number: int
    parent: int
    token: int
    level: int
    score: float


Below = Sequence[tuple[int, float]]
"""Candidates below a node: tokens and their log-probabilities, by falling probability."""

_ROOT_NODE = Node(ROOT, ROOT, 0, 0, 0.0)


class Growth:
    """A tree that grows: its owner says what is below the nodes that it asks about, level by level.

    Args:
        width: most nodes expanded on one level (EAGLE-2's k).
        first: candidates below the root.
    """

    def __init__(self, shape: DraftShape, width: int, first: Below) -> None:
        self._shape = shape
        self._width = width
        allowed = min(shape.max_nodes, shape.max_depth, shape.branching) >= 1
        self._pool = _children([first], [_ROOT_NODE], shape.branching, 0) if allowed else []
        self.open = self._choose(self._pool)

    open: list[Node]
    """Nodes of one level to be expanded, the likeliest first; none where nothing below could be kept."""

    def expand(self, below: Sequence[Below]) -> None:
        """Take the candidates below each of the open nodes, and go on to the next level."""
        level = _children(below, self.open, self._shape.branching, len(self._pool))
        self._pool += level
        self.open = self._choose(level)

    def tree(self) -> DraftTree:
        """The best of all nodes seen."""
        return _preorder(sorted(self._pool, key=_rank)[: max(0, self._shape.max_nodes)])

    def _choose(self, level: Sequence[Node]) -> list[Node]:
        if not level or level[0].level >= self._shape.max_depth:
            return []
        best = sorted(level, key=_rank)[: self._width]
        # A child is no likelier than its parent: where so many are likelier than that, it cannot be kept.
        losses = sorted(-node.score for node in self._pool)
        return [node for node in best if bisect_right(losses, -node.score) < self._shape.max_nodes]


Expand = Callable[[Sequence[Sequence[Node]]], Sequence[Sequence[Below]]]
"""Open nodes of each tree, of all trees one level, to the candidates below each of them."""


def grow_together(growths: Sequence[Growth], expand: Expand) -> None:
    """Grow each tree as it would grow alone, a level of all of them at a time.

    Args:
        expand: called once for each level; a tree that has grown has no nodes in it.
    """
    while any(growth.open for growth in growths):
        for growth, below in zip(growths, expand([growth.open for growth in growths]), strict=True):
            growth.expand(below)


def _children(below: Sequence[Below], parents: Sequence[Node], branching: int, first_number: int) -> list[Node]:
    children: list[Node] = []
    for candidates, parent in zip(below, parents, strict=True):
        for token, log_p in candidates[:branching]:
            number = first_number + len(children)
            children.append(Node(number, parent.number, token, parent.level + 1, parent.score + min(0.0, log_p)))
    return children


def _rank(node: Node) -> tuple[float, int, int]:
    return (-node.score, node.level, node.number)


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
        waiting.extend((child, len(tokens)) for child in reversed(children.get(node.number, [])))
        tokens.append(node.token)
        parents.append(parent)
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int32))
