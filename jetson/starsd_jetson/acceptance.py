"""The acceptance rate of one drafter's draft trees, by level and by rank among siblings.

Every tree is judged by the text that followed its root, whether or not it was verified. So a drafter whose trees do not
pay costs no verify pass, and one that becomes good is noticed all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from starsd_edge.speculation.tree import ROOT, DraftTree

FIRST_ACCEPTANCE = 0.7
"""Acceptance rate expected of the likeliest child of the root, from 0 to 1, before any tree of the drafter was judged.
A deeper level without trials is expected to do as the level above it.
"""
_PRIOR_TRIALS = 2.0
"""Trials that the expected acceptance rate (the prior) counts for at first. Its weight shrinks by `_RECENT` with each
trial, so that it soon decides nothing.
"""
_MEMORY = 1 - 1 / 64
"""Factor on the weight of the trials so far, at each new one. About the last 64 trials count; with fewer, chance would
look like change.
"""
_RECENT = 0.9
"""Factor on the weight of recent trials, at each new one. About the last ten count: they show early that the rate has
changed.
"""
_SURPRISE = 2.5
"""Standard deviations between the recent acceptance rate and the usual one from which on the rate has changed. From
then on only the recent trials count, until the estimate has settled (`_SETTLES`).
"""
_SETTLES = 24
"""Trials after a change for which only the recent trials count. By then these hold next to nothing from before the
change (0.9 ** 24 = 8 %).
"""
_MOSTLY = 0.5
"""Share of non-empty trees below which a drafter's trees count as mostly empty: fewer than every second one has a node.
"""


@dataclass
class _Cell:
    """Trials of one rank at one level, how many of them were hits, and the weight in trials of the expected rate."""

    trials: float = 0.0
    hits: float = 0.0
    prior: float = _PRIOR_TRIALS
    recent_trials: float = 0.0
    recent_hits: float = 0.0
    settling: int = 0

    def count(self, hit: bool) -> None:
        self.trials = self.trials * _MEMORY + 1
        self.hits = self.hits * _MEMORY + hit
        self.recent_trials = self.recent_trials * _RECENT + 1
        self.recent_hits = self.recent_hits * _RECENT + hit
        self.prior *= _RECENT
        self.settling = _SETTLES if self._has_changed else max(0, self.settling - 1)
        if self.settling:
            self.trials, self.hits = self.recent_trials, self.recent_hits

    @property
    def _has_changed(self) -> bool:
        usual = (self.hits + 1) / (self.trials + 2)
        deviation = math.sqrt(usual * (1 - usual) / self.recent_trials)
        return abs(self.recent_hits / self.recent_trials - usual) > _SURPRISE * deviation

    def share(self, expected: float) -> float:
        return (self.hits + self.prior * expected) / (self.trials + self.prior)


@dataclass
class _Level:
    """One level of the trees: how often children were offered below a parent on the text's path, and how often the
    child of each rank was the token that came.
    """

    offered: _Cell = field(default_factory=_Cell)
    ranks: list[_Cell] = field(default_factory=list)


@dataclass(frozen=True)
class _Standing:
    """How far the text has followed a tree that was asked for with `depth` levels: to `node`, which is at `level`."""

    tree: DraftTree
    depth: int
    node: int = ROOT
    level: int = 0


class AcceptanceEstimator:
    """The acceptance rates of one drafter, learnt from its trees. They are kept from answer to answer; trees are not.

    Attributes:
        last_came_true: whether the first level of the tree judged last held the token that came.
        judged: number of tree levels judged so far.
    """

    def __init__(self) -> None:
        self.last_came_true = False
        self.judged = 0
        self._levels: list[_Level] = []
        self._open: list[_Standing] = []

    def expect(self, tree: DraftTree, depth: int, since: Sequence[int] = ()) -> None:
        """Take in a draft tree, to be judged by the tokens that follow its root.

        Args:
            tree: the tree, perhaps empty.
            depth: levels that were asked for. A level that the drafter left empty counts as a trial without children.
            since: tokens that the text has gained since the root of the tree.
        """
        self._open.append(_Standing(tree, depth))
        self._walk(since, len(self._open) - 1)

    def append(self, ids: Sequence[int]) -> None:
        """The text has gained these tokens: judge every open tree by them."""
        self._walk(ids, 0)

    def forget_trees(self) -> None:
        """Another text begins: drop the trees that are not fully judged yet."""
        self._open.clear()

    def odds(self, tree: DraftTree, level: int = 0) -> npt.NDArray[np.float64]:
        """float64 [n]: for each node, the probability that the text goes through it. No child is likelier than its
        parent.

        Args:
            tree: n nodes; after a late draft this is the part below the present root.
            level: level of this tree's root in the tree that was drafted; 0 unless the draft came late.
        """
        shares = self._shares(level + tree.depth, max((len(each) for each in tree.children.values()), default=0))
        ranks: dict[int, int] = {}
        odds: list[float] = []
        for depth, parent in zip(tree.depths.tolist(), tree.parents.tolist(), strict=True):
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            odds.append(shares[level + depth - 1][rank] * (1.0 if parent == ROOT else odds[parent]))
        return np.asarray(odds, dtype=np.float64)

    def reach(self, depth: int) -> list[float]:
        """For levels 0 to `depth`, the probability that the text follows a tree down to that level."""
        most_ranks = max((len(level.ranks) for level in self._levels), default=0)
        reach = [1.0]
        for number, shares in enumerate(self._shares(depth, max(1, most_ranks))):
            level = self._levels[number] if number < len(self._levels) else _Level()
            first = level.ranks[0].trials if level.ranks else 0.0
            how_often = [1.0, *(rank.trials / first for rank in level.ranks[1:])]
            share = sum(share * min(1.0, often) for share, often in zip(shares, how_often, strict=False))
            reach.append(reach[-1] * level.offered.share(1.0) * min(1.0, share))
        return reach

    @property
    def is_mostly_empty(self) -> bool:
        """Whether most of the recent trees held no draft token."""
        return bool(self._levels) and self._levels[0].offered.share(1.0) < _MOSTLY

    def _walk(self, ids: Sequence[int], first: int) -> None:
        for token in ids:
            standing = self._open[first:]
            del self._open[first:]
            self._open += [step for step in (self._step(each, int(token)) for each in standing) if step is not None]

    def _step(self, at: _Standing, token: int) -> _Standing | None:
        """Where the text stands in this tree after one more token; None once it has left it."""
        if at.level >= at.depth:
            return None
        children = at.tree.children.get(at.node, {})
        while len(self._levels) <= at.level:
            self._levels.append(_Level())
        level = self._levels[at.level]
        level.offered.count(hit=bool(children))
        self.judged += 1
        level.ranks.extend(_Cell() for _ in range(len(children) - len(level.ranks)))
        for cell, child in zip(level.ranks, children, strict=False):
            cell.count(hit=child == token)
        if at.level == 0:
            self.last_came_true = token in children
        return _Standing(at.tree, at.depth, children[token], at.level + 1) if token in children else None

    def _shares(self, depth: int, ranks: int) -> list[list[float]]:
        """By level and rank, the acceptance rate of a node below a parent that was accepted."""
        table: list[list[float]] = []
        expected = FIRST_ACCEPTANCE
        for number in range(depth):
            cells = self._levels[number].ranks if number < len(self._levels) else []
            row: list[float] = []
            for rank in range(ranks):
                left = 1 - sum(row)
                guess = expected if rank == 0 else left * row[0] / 2
                row.append(min(left, cells[rank].share(guess) if rank < len(cells) else guess))
            table.append(row)
            expected = row[0] if row else expected
        return table
