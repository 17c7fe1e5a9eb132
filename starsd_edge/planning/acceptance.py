"""How often a drafter's draft tokens are accepted, by level of the tree and by rank among siblings.

Hub and target learn it with the same estimator, from trees that were judged by the text which followed their root. The
mean accepted length would not do, because it is censored in two ways:

- A path that ends where the tree ends says nothing of the next level. So a level counts only trees whose accepted path
  reached it.
- A child says something only where it was offered, and only where no child before it was the token that came. So the
  rate of a rank is learnt under this condition. Rates of siblings can then never add up to more than 1.

The value of a node is the product of the rates along its path. The tree of n nodes with most expected tokens is made of
the n nodes of greatest value.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.counters import PathStep
from starsd_edge.speculation.tree import ROOT, DraftTree

FIRST_ACCEPTANCE = 0.7
"""Acceptance rate expected of a parent's likeliest child, from 0 to 1, before any tree of the drafter was judged."""
FIRST_RATIO = 0.25
"""Acceptance rate expected of a rank as a share of the rank before it, before any tree was judged."""
EXPECTED_RANKS = 4
"""Children of one node that are expected to be offered; those of lower rank are hardly ever accepted."""
MAX_LEVELS = 64
"""Levels that are counted; a tree's deeper levels are not."""
MAX_RANKS = 16
"""Ranks that are counted; children of lower rank are not."""
_PRIOR_TRIALS = 2.0
"""Trials that the expected rate (the prior) counts for at first. Its weight shrinks by `_RECENT` with each trial, so
that it soon decides nothing.
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
"""Standard deviations between the recent rate and the usual one from which on the rate has changed. From then on only
the recent trials count, until the estimate has settled (`_SETTLES`).
"""
_SETTLES = 24
"""Trials after a change for which only the recent trials count. By then these hold next to nothing from before the
change (0.9 ** 24 = 8 %).
"""
_MOSTLY = 0.5
"""Share of trees with a node below which a drafter's trees count as mostly empty: fewer than every second one."""


@dataclass(frozen=True)
class LevelAcceptance:
    """Acceptance rates of a drafter's draft tokens.

    Attributes:
        rates: by level and by rank, from 0 to 1: how often a child is accepted where its parent is. The rates of one
            level add up to 1 at most. The last level holds for deeper ones too; ranks beyond the last are never
            accepted.
    """

    rates: Sequence[Sequence[float]]

    @classmethod
    def alike(cls, acceptance: float) -> LevelAcceptance:
        """The same acceptance rate at each level, for chains only."""
        return cls([[acceptance]])

    @classmethod
    def by_ratio(cls, survival: Sequence[float], ratios: Sequence[float]) -> LevelAcceptance:
        """Rates by level of the likeliest child, and by rank as a multiple of these.

        Args:
            survival: rate of the likeliest child by level.
            ratios: rate by rank as a multiple of the likeliest child's, the first 1.0. Where all ranks of a level would
                add up to more than 1, those after the first are lowered.
        """
        rates = []
        for best in survival:
            others = best * sum(ratios[1:])
            fits = min(1.0, (1 - best) / others) if others else 0.0
            rates.append([best, *(best * ratio * fits for ratio in ratios[1:])])
        return cls(rates)

    @classmethod
    def expected(cls, acceptance: float = FIRST_ACCEPTANCE) -> LevelAcceptance:
        """What is expected of a drafter of which no tree was judged.

        Args:
            acceptance: rate of the likeliest child, the same at each level.
        """
        return cls.by_ratio([acceptance], [FIRST_RATIO**rank for rank in range(EXPECTED_RANKS)])

    @property
    def survival(self) -> list[float]:
        """Rate of the likeliest child by level."""
        return [level[0] for level in self.rates]

    def at(self, level: int, rank: int) -> float:
        """Probability that the child of this rank (from 1) at this level (from 1) is accepted, given its parent is."""
        rates = self._level(level)
        return rates[rank - 1] if rank <= len(rates) else 0.0

    def accepted(self, nodes: int, depth: int, branching: int) -> list[float]:
        """Expected accepted tokens of the best trees of 0, 1, .. nodes within these limits.

        A tree that follows the drafter's own probabilities at the time is expected to give at least as much.
        """
        if depth <= 0 or branching <= 0:
            return [0.0]
        worth = [0.0]
        heap = [(-self.at(1, 1), 1, 1, 1.0)]  # value, level, rank, value of the parent
        while heap and len(worth) <= nodes:
            value, level, rank, parent = heapq.heappop(heap)
            worth.append(worth[-1] - value)
            if rank < min(branching, len(self._level(level))):
                heapq.heappush(heap, (-parent * self.at(level, rank + 1), level, rank + 1, parent))
            if level < depth:
                heapq.heappush(heap, (value * self.at(level + 1, 1), level + 1, 1, -value))
        return worth

    def _level(self, level: int) -> Sequence[float]:
        return self.rates[min(level, len(self.rates)) - 1]


@dataclass
class _Rate:
    """A rate that may change: trials, hits among them, and the weight in trials of what was expected before them."""

    trials: float = 0.0
    hits: float = 0.0
    prior: float = _PRIOR_TRIALS
    recent_trials: float = 0.0
    recent_hits: float = 0.0
    settling: int = 0

    def count(self, hit: bool, follows_changes: bool) -> None:
        self.trials = self.trials * _MEMORY + 1
        self.hits = self.hits * _MEMORY + hit
        self.recent_trials = self.recent_trials * _RECENT + 1
        self.recent_hits = self.recent_hits * _RECENT + hit
        self.prior *= _RECENT
        if follows_changes:
            self.settling = _SETTLES if self._has_changed else max(0, self.settling - 1)
        if self.settling:
            self.trials, self.hits = self.recent_trials, self.recent_hits

    def doubt(self) -> None:
        keep = _PRIOR_TRIALS / max(_PRIOR_TRIALS, self.trials)
        self.trials, self.hits, self.prior = keep * self.trials, keep * self.hits, _PRIOR_TRIALS

    def value(self, expected: float) -> float:
        return (self.hits + self.prior * expected) / (self.trials + self.prior)

    @property
    def _has_changed(self) -> bool:
        usual = (self.hits + 1) / (self.trials + 2)
        deviation = math.sqrt(usual * (1 - usual) / self.recent_trials)
        return abs(self.recent_hits / self.recent_trials - usual) > _SURPRISE * deviation


@dataclass
class _Level:
    """One level of the trees: how often the text went on with one of its nodes, out of all trees that it had followed
    down to there, and the rate of each rank where no rank before it was the token that came.
    """

    followed: _Rate = field(default_factory=_Rate)
    ranks: list[_Rate] = field(default_factory=list)

    def rates(self, best: float, ratios: Sequence[float]) -> list[float]:
        """Acceptance rate by rank, for as many ranks as there are ratios.

        Args:
            best: expected rate of the likeliest child.
            ratios: expected rate by rank as a multiple of the likeliest child's, at most 1.
        """
        rates: list[float] = []
        left = 1.0
        for rank, ratio in enumerate(ratios):
            expected = min(1.0, ratio * rates[0] / left) if rates and left > 0 else best
            condition = self.ranks[rank].value(expected) if rank < len(self.ranks) else expected
            rates.append(left * condition)
            left = max(0.0, left - rates[-1])
        return rates


@dataclass(frozen=True)
class _OpenTree:
    """A tree that is not fully judged yet: the text has followed it to `node`, which is at `level` of the `depth`
    levels that were asked for.
    """

    tree: DraftTree
    depth: int
    node: int = ROOT
    level: int = 0


class AcceptanceEstimator:
    """The acceptance rates of one drafter, learnt from its trees; about the last 64 of them count.

    The hub gives each judged tree to `learn`. A target gives its trees to `expect` and its text to `append`, and every
    tree is judged by the text, whether or not it was verified. So a drafter whose trees do not pay costs no verify
    pass, and one that becomes good is noticed all the same.

    Args:
        first: acceptance rate expected of a parent's likeliest child before any tree was judged. The hub expects less
            than a target: while nothing is known there, drafts that are too deep take time from all its other targets.
        follows_changes: let only the recent trials count once they show that a rate has changed. A target needs it: it
            decides anew in every round, and a drafter that has become wrong costs it tokens in each of them. The hub
            does not: there a draft's size changes by one level in several rounds, so quicker estimates would only be
            noisier. Where drafts did not pay, the hub's next trial begins with `doubt`.

    Attributes:
        last_came_true: whether the first level of the tree judged last held the token that came.
        judged: number of tree levels judged so far.
    """

    def __init__(self, *, first: float = FIRST_ACCEPTANCE, follows_changes: bool = True) -> None:
        self.last_came_true = False
        self.judged = 0
        self._first = first
        self._follows_changes = follows_changes
        self._non_empty = _Rate()
        self._levels: list[_Level] = []
        self._open: list[_OpenTree] = []
        self._rates: LevelAcceptance | None = None
        """The rates as of the last count; None where they are not computed yet."""

    def learn(self, steps: Sequence[PathStep]) -> None:
        """Take in a judged tree: one step for each level, from the first, at which it offered children on the accepted
        path.
        """
        for level, step in enumerate(steps):
            self._count(level, step.offered, step.rank)

    def expect(self, tree: DraftTree, depth: int, since: Sequence[int] = ()) -> None:
        """Take in a draft tree, to be judged by the tokens that follow its root.

        Args:
            tree: the tree, perhaps empty.
            depth: levels that were asked for. A level that the drafter left empty counts as a trial without children.
            since: tokens that the text has gained since the root of the tree.
        """
        self._open.append(_OpenTree(tree, depth))
        self._walk(since, len(self._open) - 1)

    def append(self, ids: Sequence[int]) -> None:
        """The text has gained these tokens: judge every open tree by them."""
        self._walk(ids, 0)

    def forget_trees(self) -> None:
        """Another text begins: drop the trees that are not fully judged yet. What was learnt stays."""
        self._open.clear()

    def doubt(self) -> None:
        """Reduce the weight of all judged trees to that of a few, so that the next few decide."""
        self._rates = None
        for level in self._levels:
            for rate in (level.followed, *level.ranks):
                rate.doubt()

    @property
    def rates(self) -> LevelAcceptance:
        """The acceptance rates expected now. A level with few trials is taken to be like the one above it."""
        if self._rates is None:
            best, ratios = self._first, [FIRST_RATIO**rank for rank in range(self._most_ranks)]
            table = []
            for level in self._levels or [_Level()]:
                rates = level.rates(best, ratios)
                best = rates[0]
                ratios = [min(1.0, rate / best) for rate in rates] if best > 0 else ratios
                table.append(rates)
            self._rates = LevelAcceptance(table)
        return self._rates

    def odds(self, tree: DraftTree, level: int = 0) -> npt.NDArray[np.float64]:
        """float64 [n]: for each node, the probability that the text goes through it. No child is likelier than its
        parent.

        Args:
            tree: n nodes; after a late draft this is the part below the present root.
            level: level of this tree's root in the tree that was drafted; 0 unless the draft came late.
        """
        rates = self.rates
        ranks: dict[int, int] = {}
        odds: list[float] = []
        for depth, parent in zip(tree.depths.tolist(), tree.parents.tolist(), strict=True):
            rank = ranks[parent] = ranks.get(parent, 0) + 1
            odds.append(rates.at(level + depth, rank) * (1.0 if parent == ROOT else odds[parent]))
        return np.asarray(odds, dtype=np.float64)

    def reach(self, depth: int) -> list[float]:
        """For levels 0 to `depth`, the probability that the text follows a tree down to that level. That the drafter
        may leave a level empty is included.
        """
        reach, expected = [1.0], self._first
        for level in range(depth):
            if level < len(self._levels):
                expected = self._levels[level].followed.value(expected)
            reach.append(reach[-1] * expected)
        return reach

    @property
    def _most_ranks(self) -> int:
        return max([EXPECTED_RANKS, *(len(level.ranks) for level in self._levels)])

    @property
    def is_mostly_empty(self) -> bool:
        """Whether most of the recent trees held no draft token."""
        return self._non_empty.value(1.0) < _MOSTLY

    def _walk(self, ids: Sequence[int], first: int) -> None:
        for token in ids:
            open_trees = self._open[first:]
            del self._open[first:]
            self._open += [step for step in (self._step(each, int(token)) for each in open_trees) if step is not None]

    def _step(self, at: _OpenTree, token: int) -> _OpenTree | None:
        """Where the text stands in this tree after one more token; None once it has left it."""
        if at.level >= at.depth:
            return None
        children = at.tree.children.get(at.node, {})
        rank = next((rank for rank, child in enumerate(children, 1) if child == token), 0)
        self._count(at.level, len(children), rank)
        return _OpenTree(at.tree, at.depth, children[token], at.level + 1) if rank else None

    def _count(self, level: int, offered: int, rank: int) -> None:
        """A tree that was right so far offered so many children at this level (from 0). The one of this rank (from 1)
        was the token that came, or none (0).
        """
        self.judged += 1
        if level == 0:
            self.last_came_true = rank > 0
            self._non_empty.count(offered > 0, self._follows_changes)
        if level >= MAX_LEVELS:
            return
        self._rates = None
        while len(self._levels) <= level:
            self._levels.append(_Level())
        record = self._levels[level]
        record.followed.count(rank > 0, self._follows_changes)
        tried = min(rank or offered, MAX_RANKS)
        record.ranks.extend(_Rate() for _ in range(tried - len(record.ranks)))
        for number, rate in enumerate(record.ranks[:tried], 1):
            rate.count(number == rank, self._follows_changes)
