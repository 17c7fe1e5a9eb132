"""Is a draft worth verifying? Its expected tokens against what its rows cost, both as seen so far on this target.

A node of a tree pays for itself if the chance that the text goes through it is greater than the tokens that its row's
share of the verify pass would give otherwise. Whatever is pruned or left out, the text is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.curve import VerifyCurves
from starsd_edge.planning.draft_shape import paying_shape, usual_acceptance
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.acceptance import FIRST_ACCEPTANCE, AcceptanceEstimator
from starsd_jetson.pass_times import PassTimes

CLEAR_PRUNING = 0.04
"""A tree with branches is pruned where that is expected to win this share of its tokens. Its drafter chose the nodes
knowing how sure it was of each here and now; averages by level and rank do not know, and on what is close they are
mostly wrong.
"""
RETIMED_AFTER = 64
"""A plain step is timed anew after so many rounds without one,"""
CLEAR_GAIN = 1.5
"""unless drafts are so many times as fast that its exact time decides nothing."""


class DraftCostModel:
    """Weighs the drafts of one drafter.

    Args:
        measured: what verify passes of this target's engine took when they were measured; None where they were not.

    Attributes:
        times: of this target's rounds.
        foresight: of the drafter.
    """

    def __init__(self, measured: VerifyCurves | None = None) -> None:
        self._measured = measured
        self.times = PassTimes()
        self.estimator = AcceptanceEstimator()

    def begin(self, prompt_tokens: int) -> None:
        """An answer to a prompt of this length begins."""
        self.estimator.forget_trees()
        if self._measured is not None:
            self.times.expect(self._measured.at(prompt_tokens))

    def wanted(self, limit: DraftShape) -> DraftShape:
        """What of a shape to ask for: while rounds have shown little, no more than pays by the times measured before.
        Afterwards, and where there are none, all of it: whoever drafts knows by then what its guesses are worth.
        """
        if self.times.expected is None or limit.max_nodes == 0 or limit.max_depth == 0:
            return limit
        return paying_shape(self.times.curve(limit.max_nodes + 1).tolist(), usual_acceptance(FIRST_ACCEPTANCE), limit)

    @property
    def plain_tokens_per_s(self) -> float:
        """Of decoding token by token; 0 while nothing was timed."""
        return 1 / self.times.plain_s if self.times.is_known else 0.0

    def tokens(self, tree: DraftTree, level: int = 0) -> float:
        """Tokens that a round with this tree is expected to give, the target's own included."""
        return 1 + float(self.estimator.odds(tree, level).sum())

    def worth(self, tree: DraftTree, level: int = 0, tokens_per_s: float = 0.0) -> DraftTree:
        """The part of a tree that is worth verifying, perhaps none.

        Args:
            level: of its root in the tree that was drafted: it is what is left of a late one.
            tokens_per_s: what the target's time gives elsewhere; at least plain decoding.
        """
        if len(tree) == 0 or not self.times.is_known:
            return tree
        odds = self.estimator.odds(tree, level)
        order = np.argsort(-odds, kind="stable")  # stable: a parent stands before its children, also on a tie
        curve = self.times.curve(len(tree) + 1)
        costs = (curve[1:] - curve[0]) * max(tokens_per_s, self.plain_tokens_per_s)
        net = np.cumsum(odds[order]) - costs
        best = int(np.argmax(net))
        if net[best] <= 0:
            return DraftTree.empty()
        least = CLEAR_PRUNING * (1 + float(odds.sum())) if len(tree) > tree.depth else 0.0
        return tree.only(np.sort(order[: best + 1])) if net[best] - net[-1] > least else tree

    def retimes_plain(self, tree: DraftTree, level: int = 0) -> bool:
        """Whether a plain step is to be timed in the place of this tree: what it gains is not clear without that."""
        if self.times.plain_age < RETIMED_AFTER or len(tree) == 0:
            return False
        curve = self.times.curve(len(tree) + 1)
        return self.tokens(tree, level) * float(curve[0]) < CLEAR_GAIN * float(curve[-1])


@dataclass(frozen=True)
class ExpectedGain:
    """What may come of a request for a draft.

    Attributes:
        reach: for levels 0, 1 ..., the chance that the text stays in the tree down to there.
        curve: seconds of rounds of 1, 2 ... rows, for all rows of the tree.
        rows_per_level: nodes of a tree for each of its levels.
        shared: others wait for the hub's time. Going on while a draft is on its way may still be best for this target,
            but what is left of late trees is so little that all targets together would lose by it.
    """

    reach: Sequence[float]
    curve: npt.NDArray[np.float64]
    rows_per_level: float
    shared: bool = False

    def ways(self, remaining_s: float, walked: int = 0) -> list[list[tuple[float, float]]]:
        """(tokens, seconds) of each way to go on until a draft is verified that comes in `remaining_s`.

        Way number k takes k plain steps, waits for the draft if it is still not there, and verifies what is left of it
        below the tokens emitted meanwhile, down to one level or the other; the chance that nothing is left is in it.
        Where the hub is shared there is only the way that waits.

        Args:
            walked: tokens emitted since the request.
        """
        plain_s = float(self.curve[0])
        last = len(self.reach) - 1
        ways: list[list[tuple[float, float]]] = []
        for steps in range(min(1, last - walked) if self.shared else last - walked):
            waited_s = max(remaining_s, steps * plain_s)
            alive = self.reach[walked + steps]
            tokens = steps + alive
            way: list[tuple[float, float]] = []
            for level in range(walked + steps + 1, last + 1):
                tokens += self.reach[level]
                rows = 1 + round((level - walked - steps) * self.rows_per_level)
                verify_s = float(self.curve[min(rows, len(self.curve)) - 1])
                way.append((tokens, waited_s + alive * verify_s))
            ways.append(way)
        return ways

    def tokens_per_s(self, remaining_s: float) -> float:
        """Of the best way with a draft; 0 where there is none."""
        return max((tokens / s for way in self.ways(remaining_s) for tokens, s in way), default=0.0)

    def waits(self, remaining_s: float, walked: int, without: tuple[float, float], tokens_per_s: float) -> bool:
        """Whether waiting is the best way from here.

        Args:
            without: tokens and seconds of a round that does not wait.
            tokens_per_s: what the target's time is worth.
        """
        ways = self.ways(remaining_s, walked)
        nets = [max(tokens - tokens_per_s * seconds for tokens, seconds in way) for way in [*ways, [without]]]
        return bool(ways) and nets[0] >= max(nets)

    def longest_wait_s(self, walked: int, tokens_per_s: float) -> float:
        """After so many seconds of waiting it has cost more than a draft can bring."""
        ways = self.ways(0.0, walked)
        if not ways:
            return 0.0
        return max(0.0, max(tokens / tokens_per_s - seconds for tokens, seconds in ways[0]))
