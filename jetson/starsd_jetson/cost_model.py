"""The cost model of drafts: expected tokens of a draft tree against the time of its verify pass, as seen on this
target.

A node pays if the probability that the text goes through it is greater than the number of tokens that plain decoding
would give in the time of its row of the verify pass. Whatever is pruned or left out, the text is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.acceptance import AcceptanceEstimator, LevelAcceptance
from starsd_edge.planning.draft_shape import paying_shape
from starsd_edge.planning.pass_times import PassTimes, VerifyCurves
from starsd_edge.speculation.tree import DraftShape, DraftTree

CLEAR_PRUNING = 0.04
"""Gain from which on a tree with branches is pruned, as a share of the round's expected tokens. The drafter chose the
nodes by their probability in this very context; average acceptance rates by level and rank do not know the context, and
where the gain is small they are mostly wrong.
"""
RETIMED_AFTER = 64
"""Rounds without a plain step (a verify pass of one row) after which its time is measured anew, since all gains are
relative to it.
"""
CLEAR_GAIN = 1.5
"""Gain over plain decoding from which on a plain step is not timed anew: its exact time would decide nothing then."""


class DraftCostModel:
    """Decides which draft tokens of one drafter are worth a verify pass.

    Args:
        measured: times of this target's verify passes, as `bench verify` measured them; None where they were not.

    Attributes:
        times: seconds of this target's rounds by the rows that they verify.
        estimator: acceptance rates of the drafter.
    """

    def __init__(self, measured: VerifyCurves | None = None) -> None:
        self._measured = measured
        self.times = PassTimes()
        self.estimator = AcceptanceEstimator()

    def begin(self, prompt_tokens: int) -> None:
        """An answer to a prompt of this many tokens begins: open trees are dropped, and the measured times of that
        length are taken.
        """
        self.estimator.forget_trees()
        if self._measured is not None:
            self.times.expect(self._measured.at(prompt_tokens))

    def wanted(self, limit: DraftShape) -> DraftShape:
        """The draft shape to ask for, at most `limit`.

        During the first `EXPECTED_ROUNDS` rounds it is the largest shape that pays by the measured verify passes.
        Afterwards, and where none were measured, it is `limit`: the drafter knows its acceptance rate by then, and
        drafts less where less pays.
        """
        if self.times.expected is None or limit.max_nodes == 0 or limit.max_depth == 0:
            return limit
        return paying_shape(self.times.curve(limit.max_nodes + 1).tolist(), LevelAcceptance.expected(), limit)

    @property
    def plain_tokens_per_s(self) -> float:
        """Tokens per second of plain decoding, one token per pass; 0 while no time is known."""
        return 1 / self.times.plain_s if self.times.is_known else 0.0

    def tokens(self, tree: DraftTree, level: int = 0) -> float:
        """Expected tokens of a round with this tree, the bonus token included; for `level` see `worth`."""
        return 1 + float(self.estimator.odds(tree, level).sum())

    def worth(self, tree: DraftTree, level: int = 0, tokens_per_s: float = 0.0) -> DraftTree:
        """The part of a tree that is worth verifying, perhaps none.

        Args:
            tree: a draft tree, or what is left of a late one below the present root.
            level: level of its root in the tree that was drafted; 0 unless the draft came late.
            tokens_per_s: tokens per second that the target would get otherwise; the rate of plain decoding counts if it
                is higher.
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
        """Whether to run a plain step instead of verifying this tree, to measure its time: the last measurement is
        `RETIMED_AFTER` rounds old, and the tree's gain is below `CLEAR_GAIN`. For `level` see `worth`.
        """
        if self.times.plain_age < RETIMED_AFTER or len(tree) == 0:
            return False
        curve = self.times.curve(len(tree) + 1)
        return self.tokens(tree, level) * float(curve[0]) < CLEAR_GAIN * float(curve[-1])


@dataclass(frozen=True)
class ExpectedGain:
    """Expected tokens and seconds of the ways to use a requested draft.

    Attributes:
        reach: for levels 0, 1 ..., the probability that the text follows the tree down to that level.
        curve: float64, seconds of rounds of 1, 2 ... rows, for all rows of the tree.
        rows_per_level: mean number of nodes in each level of a tree.
        shared: other targets wait for the hub's time. Decoding on while a draft is on its way may then still be best
            for this target, but so little is left of late trees that all targets together would lose by it.
    """

    reach: Sequence[float]
    curve: npt.NDArray[np.float64]
    rows_per_level: float
    shared: bool = False

    def ways(self, remaining_s: float, walked: int = 0) -> list[list[tuple[float, float]]]:
        """Expected (tokens, seconds) of each way to go on until a draft that comes in `remaining_s` is verified.

        Way k takes k plain steps, waits if the draft is still not there, and verifies what is left of it below the
        tokens emitted meanwhile. It has one entry for each level down to which the tree may be verified. The
        probability that nothing is left is included. On a shared hub there is only way 0, which waits at once.

        Args:
            remaining_s: seconds until the draft comes.
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
        """Tokens per second of the best way (see `ways`); 0 where there is none."""
        return max((tokens / s for way in self.ways(remaining_s) for tokens, s in way), default=0.0)

    def waits(self, remaining_s: float, walked: int, without: tuple[float, float], tokens_per_s: float) -> bool:
        """Whether to wait for the draft now is better than all other ways and than a round without it.

        Args:
            remaining_s: seconds until the draft comes.
            walked: tokens emitted since the request.
            without: expected tokens and seconds of a round that does not wait.
            tokens_per_s: tokens that a second of the target's time gives otherwise; each way is charged for its time
                at this rate.
        """
        ways = self.ways(remaining_s, walked)
        nets = [max(tokens - tokens_per_s * seconds for tokens, seconds in way) for way in [*ways, [without]]]
        return bool(ways) and nets[0] >= max(nets)

    def longest_wait_s(self, walked: int, tokens_per_s: float) -> float:
        """Seconds after which a wait has cost more tokens, at this rate, than the draft is expected to bring.

        Args:
            walked: tokens emitted since the request.
            tokens_per_s: tokens per second of a round that does not wait.
        """
        ways = self.ways(0.0, walked)
        if not ways:
            return 0.0
        return max(0.0, max(tokens / tokens_per_s - seconds for tokens, seconds in ways[0]))
