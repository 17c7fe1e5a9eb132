"""EAGLE-2's dynamic draft tree (arXiv 2406.16858, section 4): grow the likeliest nodes level by level, then keep the
best of all that were seen.

A node's score is the sum of log-probabilities along its path, so no child beats its parent; where they are equal the
shallower node counts as better. The best n nodes therefore always hold their ancestors, and so does every tree here.

A path that the text has taken before may be added to the head's candidates: its next token becomes a candidate below
the node that the path has reached, with the better of both scores.

Trees of several sessions grow in step, so that one pass of a head serves a level of all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree


class Node(NamedTuple):
    """A draft token while its tree grows.

    Attributes:
        number: its place in the order of growth.
        parent: the number of its parent, `ROOT` for a child of the root.
    """

    number: int
    parent: int
    token: int
    level: int
    score: float


Below = Sequence[tuple[int, float]]
"""Candidates below a node: tokens and their log-probabilities, by falling probability."""


@dataclass(frozen=True)
class NextTokens:
    """The likeliest next tokens at one position.

    Attributes:
        tokens: int64 [K], by falling probability.
        scores: float64 [K], their log-probabilities.
    """

    tokens: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]

    @property
    def below(self) -> Below:
        """The candidates as pairs of token and log-probability, as a tree takes them in."""
        return list(zip(self.tokens.tolist(), self.scores.tolist(), strict=True))


_ROOT_NODE = Node(ROOT, ROOT, 0, 0, 0.0)


class Growth:
    """A tree that grows level by level: its owner gives the candidates below each of the `open` nodes.

    Args:
        width: most nodes expanded on one level (EAGLE-2's k).
        first: candidates below the root.
        repeated: tokens of a path from the root and their log-probabilities.
    """

    def __init__(self, shape: DraftShape, width: int, first: Below, repeated: Below = ()) -> None:
        self._shape = shape
        self._width = width
        self._repeated = repeated
        self._tip = _ROOT_NODE
        """The last node of the repeated path that is in the tree."""
        self._pool: list[Node] = []
        if min(shape.max_nodes, shape.max_depth, shape.branching) >= 1:
            self._pool = self._children([first], [_ROOT_NODE])
        self.open = self._choose(self._pool)

    open: list[Node]
    """Nodes of one level to be expanded, the likeliest first; none where nothing below could be kept."""

    def expand(self, below: Sequence[Below]) -> None:
        """Take the candidates below each of the open nodes, and go on to the next level."""
        level = self._children(below, self.open)
        self._pool += level
        self.open = self._choose(level)

    def tree(self) -> DraftTree:
        """The best of all nodes seen."""
        return _preorder(sorted(self._pool, key=_rank)[: max(0, self._shape.max_nodes)])

    def _children(self, below: Sequence[Below], parents: Sequence[Node]) -> list[Node]:
        children: list[Node] = []
        tip = self._tip
        for candidates, parent in zip(below, parents, strict=True):
            goes_on = parent is tip and parent.level < len(self._repeated)
            again = self._repeated[parent.level] if goes_on else None
            for token, log_p in _with(candidates, again)[: self._shape.branching]:
                number, score = len(self._pool) + len(children), parent.score + min(0.0, log_p)
                children.append(Node(number, parent.number, token, parent.level + 1, score))
                if again is not None and token == again[0]:
                    self._tip = children[-1]
        return children

    def _choose(self, level: Sequence[Node]) -> list[Node]:
        if not level or level[0].level >= self._shape.max_depth:
            return []
        best = sorted(level, key=_rank)[: self._width]
        # A child is no likelier than its parent: where enough nodes are likelier than the parent, it cannot be kept.
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


def grow_spine(shape: DraftShape, next_after: Callable[[list[int]], NextTokens]) -> DraftTree:
    """A tree whose inner nodes are the greedy path, with the runners-up at each of its nodes as siblings. It is for
    drafters that compute one position in each pass: a path of depth d costs d passes, and the runners-up cost none.
    Which nodes stay within the shape is decided by cumulative log-probability.

    Args:
        next_after: what may follow these tokens of the greedy path, from the root on; called for ever longer paths,
            each one token longer than the one before.
    """
    if min(shape.max_nodes, shape.max_depth, shape.branching) < 1:
        return DraftTree.empty()
    path: list[int] = []
    growth = Growth(shape, 1, next_after(path).below)
    while growth.open:
        path.append(growth.open[0].token)
        growth.expand([next_after(path).below])
    return growth.tree()


def top_candidates(logits: npt.NDArray[np.float32], count: int) -> NextTokens:
    """The `count` likeliest tokens of one row of logits [V], the lowest id first among equals."""
    count = min(count, len(logits))
    cut = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= cut)
    tokens = ids[np.argsort(-logits[ids], kind="stable")][:count]
    best = float(logits[tokens[0]])
    log_total = best + float(np.log(np.exp(logits - np.float32(best)).sum(dtype=np.float64)))
    return NextTokens(tokens.astype(np.int64), logits[tokens].astype(np.float64) - log_total)


def _with(candidates: Below, again: tuple[int, float] | None) -> Below:
    """The candidates with one more, or with a better score for the one that is among them."""
    if again is None:
        return candidates
    others = [each for each in candidates if each[0] != again[0]]
    seen = next((log_p for token, log_p in candidates if token == again[0]), again[1])
    return sorted([(again[0], max(seen, again[1])), *others], key=lambda each: -each[1])


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
