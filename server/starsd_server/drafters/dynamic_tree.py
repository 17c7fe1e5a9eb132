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
        parent: index of its parent in the order of growth, `ROOT` for none.
        beam: which of the nodes expanded last it is a child of.
    """

    token: int
    parent: int
    beam: int
    level: int
    score: float


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
    pool: list[Node] = []
    level = _children([first], [ROOT], [0.0], 1, shape.branching)
    while level:
        start = len(pool)
        pool.extend(level)
        chosen = sorted(range(start, len(pool)), key=lambda index: _rank(pool, index))[:width]
        chosen = [index for index in chosen if _still_counts(pool, index, shape.max_nodes)]
        depth = pool[start].level
        if not chosen or depth == shape.max_depth:
            break
        below = expand([pool[index] for index in chosen])
        level = _children(below, chosen, [pool[index].score for index in chosen], depth + 1, shape.branching)
    kept = sorted(range(len(pool)), key=lambda index: _rank(pool, index))[: shape.max_nodes]
    return _preorder(pool, kept)


def _children(
    below: Sequence[Candidates], parents: Sequence[int], scores: Sequence[float], level: int, branching: int
) -> list[Node]:
    return [
        Node(int(token), parent, beam, level, score + min(0.0, float(log_p)))
        for beam, (found, parent, score) in enumerate(zip(below, parents, scores, strict=True))
        for token, log_p in zip(found.tokens[:branching], found.scores[:branching], strict=True)
    ]


def _rank(pool: Sequence[Node], index: int) -> tuple[float, int, int]:
    return (-pool[index].score, pool[index].level, index)


def _still_counts(pool: Sequence[Node], index: int, max_nodes: int) -> bool:
    """Whether a child of this node, no likelier than itself, can be among the best `max_nodes`."""
    return sum(node.score >= pool[index].score for node in pool) < max_nodes


def _preorder(pool: Sequence[Node], kept: Sequence[int]) -> DraftTree:
    """Depth-first, children by falling score. `kept` is in that order and holds every node's ancestors."""
    children: dict[int, list[int]] = {}
    for index in kept:
        children.setdefault(pool[index].parent, []).append(index)
    tokens: list[int] = []
    parents: list[int] = []
    waiting = [(index, ROOT) for index in reversed(children.get(ROOT, []))]
    while waiting:
        index, parent = waiting.pop()
        node = len(tokens)
        tokens.append(pool[index].token)
        parents.append(parent)
        waiting.extend((child, node) for child in reversed(children.get(index, [])))
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int32))
