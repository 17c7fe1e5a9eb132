"""A tree from a chain: the greedy path as its spine, the runners-up at each spine node as siblings.

One forward pass gives the candidates below one node, so a spine of depth d costs d passes and offers all their
runners-up for nothing. Which nodes stay within the limit is decided by cumulative log-probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree


@dataclass(frozen=True)
class NextTokens:
    """The likeliest next tokens at one position.

    Attributes:
        tokens: int64 [K], by falling probability.
        scores: float64 [K], their log-probabilities.
    """

    tokens: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Node:
    level: int
    rank: int
    token: int
    score: float


def top_candidates(logits: npt.NDArray[np.float32], count: int) -> NextTokens:
    """The `count` likeliest tokens of one row of logits [V], the lowest id first among equals."""
    count = min(count, len(logits))
    cut = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= cut)
    tokens = ids[np.argsort(-logits[ids], kind="stable")][:count]
    best = float(logits[tokens[0]])
    log_total = best + float(np.log(np.exp(logits - np.float32(best)).sum(dtype=np.float64)))
    return NextTokens(tokens.astype(np.int64), logits[tokens].astype(np.float64) - log_total)


def grow(shape: DraftShape, candidates_after: Callable[[list[int]], NextTokens]) -> DraftTree:
    """The spine with siblings that fits `shape`.

    Args:
        candidates_after: candidates below the spine node that these tokens lead to from the root; called for
            ever longer paths, each one token longer than the one before.
    """
    if shape.branching < 1:
        return DraftTree.empty()
    spine: list[int] = []
    score = 0.0
    pool: list[_Node] = []
    while len(spine) < shape.max_depth and _still_counts(pool, score, shape.max_nodes):
        below = candidates_after(spine)
        level = len(spine) + 1
        pool.extend(
            _Node(level, rank, int(token), score + float(log_p))
            for rank, (token, log_p) in enumerate(zip(below.tokens, below.scores, strict=True))
            if rank < shape.branching
        )
        spine.append(int(below.tokens[0]))
        score += float(below.scores[0])
    kept = sorted(pool, key=_preference)[: shape.max_nodes]
    return _preorder(kept)


def _preference(node: _Node) -> tuple[float, int, int]:
    return (-node.score, node.level, node.rank)


def _still_counts(pool: list[_Node], score: float, max_nodes: int) -> bool:
    """Whether children of a spine node of this score, which are no likelier, can be among the best `max_nodes`."""
    return sum(node.score >= score for node in pool) < max_nodes


def _preorder(kept: list[_Node]) -> DraftTree:
    """Depth-first, likeliest child first: down the spine, then the siblings from the deepest level up.

    The spine node of level k is node k - 1, so it is the parent of everything on level k + 1; level 1 hangs from ROOT.
    """
    spine = sorted((node for node in kept if node.rank == 0), key=lambda node: node.level)
    siblings = sorted((node for node in kept if node.rank), key=lambda node: (-node.level, node.rank))
    nodes = [*spine, *siblings]
    parents = [node.level - 2 if node.level > 1 else ROOT for node in nodes]
    return DraftTree(np.array([node.token for node in nodes], dtype=np.int64), np.array(parents, dtype=np.int32))
