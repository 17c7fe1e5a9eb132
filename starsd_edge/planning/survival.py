"""How often a drafter's guesses come true: by level and by rank, learnt from rounds as they are judged.

Acceptance over length would be censored: a path that ends where the tree ends says nothing of the next level. So only
rounds count whose accepted path reached a level *and* found a child offered there. Two things are learnt:

    survival[k]   the best child at level k + 1 came true, given that the path had come so far
    ratio[r]      how often the child of rank r + 1 came true, as a multiple of the best one's, where both were offered

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
"""Expected of a drafter of which nothing is known yet: speculation begins where it would pay at that."""
FIRST_RATIO = 0.25
"""Expected of each rank, of the one before it."""
_MEMORY_ROUNDS = 64
_PRIOR_ROUNDS = 2.0
MAX_LEVELS = 64
MAX_RANKS = 16


@dataclass(frozen=True)
class LevelAcceptance:
    """What a drafter's guesses are worth.

    Attributes:
        survival: of the best child by level; the last stands for those below it too.
        ratios: by rank from 1.0 on; ranks beyond the last are worth nothing.
    """

    survival: Sequence[float]
    ratios: Sequence[float] = (1.0,)

    @classmethod
    def alike(cls, acceptance: float) -> LevelAcceptance:
        """The same at each level, chains only."""
        return cls((acceptance,))

    def at(self, level: int, rank: int) -> float:
        """That the child of this rank (from 1) at this level (from 1) comes true."""
        if rank > len(self.ratios):
            return 0.0
        best = self.survival[min(level, len(self.survival)) - 1]
        if rank == 1:
            return best
        # Where ratios were learnt at levels of less survival, the others together get no more than the best one leaves.
        others = best * self._others
        return best * self.ratios[rank - 1] * min(1.0, (1 - best) / others) if others else 0.0

    @cached_property
    def _others(self) -> float:
        return sum(self.ratios[1:])

    def accepted(self, nodes: int, depth: int, branching: int) -> list[float]:
        """Expected accepted tokens of the best trees of 0, 1, .. nodes within these limits.

        A tree that follows what the drafter finds likely at the time is worth at least as much.
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
    """Learns `LevelAcceptance` from judged rounds; old ones fade."""

    def __init__(self) -> None:
        self._trials: list[float] = []
        self._hits: list[float] = []
        self._best_hits: list[float] = [0.0] * MAX_RANKS
        self._rank_hits: list[float] = [0.0] * MAX_RANKS

    def judged(self, steps: Sequence[PathStep]) -> None:
        """A round: the levels at which its tree offered something on the path that came true, from the first."""
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
        """Believe little of what was learnt: the next few rounds decide."""
        share = _PRIOR_ROUNDS / max(_PRIOR_ROUNDS, *self._trials, 0.0)
        for sums in (self._trials, self._hits, self._best_hits, self._rank_hits):
            sums[:] = [share * each for each in sums]

    def copy(self) -> SurvivalEstimator:
        """One that goes on by itself from what this one knows."""
        other = SurvivalEstimator()
        other._trials, other._hits = [*self._trials], [*self._hits]
        other._best_hits, other._rank_hits = [*self._best_hits], [*self._rank_hits]
        return other

    @property
    def guesses(self) -> LevelAcceptance:
        """What is expected now. A level of which little is known is taken to be like the one above it."""
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
