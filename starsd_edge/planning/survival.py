"""Acceptance rates of a drafter's draft tokens by level and by rank, learnt from rounds as they are judged.

The mean accepted length would be censored: a path that ends where the tree ends says nothing of the next level. So a
level counts only rounds whose accepted path reached it *and* found a child offered there. Two things are learnt:

    survival[k]   share of rounds in which the best child at level k + 1 was accepted, of those that came so far
    ratio[r]      acceptance rate of the child of rank r + 1 as a multiple of the best child's, where both were offered

With both, the value of a node is the product along its path, and the tree of n nodes with most expected tokens is the
n nodes of greatest value.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from starsd_edge.protocol.counters import PathStep

FIRST_SURVIVAL = 0.6
"""Acceptance rate of the best child that is expected before any round was judged. Speculation begins where it would pay
at this rate.
"""
FIRST_RATIO = 0.25
"""Expected acceptance rate of a rank as a share of the rank before it, before any round was judged."""
_MEMORY_ROUNDS = 64
"""Rounds that count: with each new one the weight of the earlier ones is multiplied by 1 - 1 / 64."""
_PRIOR_ROUNDS = 2.0
"""Weight of the expected rates, in rounds: a few judged rounds outweigh them."""
MAX_LEVELS = 64
"""Levels that are counted; a tree's deeper levels are not."""
MAX_RANKS = 16
"""Ranks that are counted; children of lower rank are not."""


@dataclass(frozen=True)
class LevelAcceptance:
    """Acceptance rates of a drafter's draft tokens.

    Attributes:
        survival: acceptance rate of the best child by level, from 0 to 1; the last holds for deeper levels too.
        ratios: acceptance rate by rank as a multiple of the best child's, the first 1.0; ranks beyond the last are
            never accepted.
    """

    survival: Sequence[float]
    ratios: Sequence[float] = (1.0,)

    @classmethod
    def alike(cls, acceptance: float) -> LevelAcceptance:
        """The same acceptance rate at each level, for chains only."""
        return cls((acceptance,))

    def at(self, level: int, rank: int) -> float:
        """Probability that the child of this rank (from 1) at this level (from 1) is accepted, given its parent is."""
        if rank > len(self.ratios):
            return 0.0
        best = self.survival[min(level, len(self.survival)) - 1]
        if rank == 1:
            return best
        # Ratios may come from levels of lower survival: the probabilities of all ranks must not add up to more than 1.
        others = best * self._others
        return best * self.ratios[rank - 1] * min(1.0, (1 - best) / others) if others else 0.0

    @cached_property
    def _others(self) -> float:
        return sum(self.ratios[1:])

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
            if rank < branching and rank < len(self.ratios):
                heapq.heappush(heap, (-parent * self.at(level, rank + 1), level, rank + 1, parent))
            if level < depth:
                heapq.heappush(heap, (value * self.at(level + 1, 1), level + 1, 1, -value))
        return worth


class SurvivalEstimator:
    """Learns `LevelAcceptance` from judged rounds; about the last `_MEMORY_ROUNDS` count."""

    def __init__(self) -> None:
        self._trials: list[float] = []
        self._hits: list[float] = []
        self._best_hits: list[float] = [0.0] * MAX_RANKS
        self._rank_hits: list[float] = [0.0] * MAX_RANKS

    def judged(self, steps: Sequence[PathStep]) -> None:
        """Take in a judged round: one step for each level, from the first, at which its tree offered children on the
        accepted path.
        """
        keep = 1 - 1 / _MEMORY_ROUNDS
        for level, step in enumerate(steps[:MAX_LEVELS]):
            if level == len(self._trials):
                self._trials.append(0.0)
                self._hits.append(0.0)
            self._trials[level] = keep * self._trials[level] + 1
            self._hits[level] = keep * self._hits[level] + (step.rank == 1)
            for rank in range(1, min(step.offered, MAX_RANKS)):
                self._best_hits[rank] = keep * self._best_hits[rank] + (step.rank == 1)
                self._rank_hits[rank] = keep * self._rank_hits[rank] + (step.rank == rank + 1)

    def doubt(self) -> None:
        """Reduce the weight of all judged rounds to `_PRIOR_ROUNDS`, so that the next few rounds decide."""
        share = _PRIOR_ROUNDS / max(_PRIOR_ROUNDS, *self._trials, 0.0)
        for sums in (self._trials, self._hits, self._best_hits, self._rank_hits):
            sums[:] = [share * each for each in sums]

    def copy(self) -> SurvivalEstimator:
        """An independent estimator that begins with what this one has learnt."""
        other = SurvivalEstimator()
        other._trials, other._hits = [*self._trials], [*self._hits]
        other._best_hits, other._rank_hits = [*self._best_hits], [*self._rank_hits]
        return other

    @property
    def guesses(self) -> LevelAcceptance:
        """The acceptance rates expected now. A level with few trials is taken to be like the one above it."""
        survival = []
        expected = FIRST_SURVIVAL
        for hits, trials in zip(self._hits, self._trials, strict=True):
            expected = (hits + _PRIOR_ROUNDS * expected) / (trials + _PRIOR_ROUNDS)
            survival.append(expected)
        ratios = [1.0]
        for hits, best in zip(self._rank_hits[1:], self._best_hits[1:], strict=True):
            ratio = (hits + _PRIOR_ROUNDS * FIRST_RATIO * ratios[-1]) / (best + _PRIOR_ROUNDS)
            ratios.append(min(ratio, ratios[-1]))
        return LevelAcceptance(survival or [FIRST_SURVIVAL], ratios)
