"""The size of a target's drafts: how large a tree it asks for, and how much of the tree that comes it verifies.

"Why is my draft this size?" At the target four things decide, each within what the one before it leaves.

1. *The largest draft* (`hub_draft_shape`, `draft_shape`): what the user named, or else a usual tree. Where measured
   verify passes show that further rows cost nearly no time, it is a larger one. The engine limits it: its most rows of
   a verify pass, and chains only for weights for which trees are not exact.
2. *What one request asks for*. The decode loop limits it to the tokens and the context that are left
   (`starsd_jetson.answering`). Within that, `DraftCostModel.wanted`: in the first rounds it is the shape that pays by
   the measured verify passes. Later it is the largest draft: the hub knows the acceptance rate by then, and drafts less
   where less pays (`starsd_server.draft_size`).
3. *Whether to ask at all*: the wait policy (`starsd_jetson.wait_policy`).
4. *What of the tree is verified* (`DraftCostModel.worth`): a draft token pays if the probability that the text goes
   through it is greater than the number of tokens that plain decoding would give in the time of its row. The
   probabilities are learnt from judged trees (`starsd_edge.planning.acceptance`), the times of rows from rounds
   (`starsd_edge.planning.pass_times`). One round in `RETIMED_AFTER` verifies nothing, to time a plain step, unless
   drafts gain clearly.

Why a round had no draft is a reason of `starsd_edge.protocol.codes`. Whatever is left out, the text is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starsd_edge.errors import UsageError
from starsd_edge.planning.acceptance import AcceptanceEstimator, LevelAcceptance
from starsd_edge.planning.pass_times import PassTimes, VerifyCurve, VerifyCurves
from starsd_edge.runtime.engine import EngineSpec
from starsd_edge.speculation.tree import DraftShape, DraftTree

DEFAULT_TREE = DraftShape(8, 4, 4)
"""Draft shape (nodes, depth, branching) that a hub is asked for where the user names none. On a CPU a verify pass of
nine rows costs a third more than one of one row, and the hub sends less where less pays.
"""
DEFAULT_DRAFT_DEPTH = 4
"""Most draft tokens in a row where the user names no depth. On a CPU a verify pass of five rows costs little more than
one of one row.
"""
LARGEST_TREE, LARGEST_CHAIN = DraftShape(24, 6, 4), DraftShape(8, 8)
"""Largest tree and largest chain that are asked for where measured verify passes show that more rows cost nearly no
time. Draft tokens beyond them are hardly ever accepted.
"""
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


def hub_draft_shape(
    spec: EngineSpec,
    depth: int | None,
    nodes: int | None,
    branching: int | None,
    measured: VerifyCurve | None = None,
) -> DraftShape:
    """The largest tree to ask a hub for; see `draft_shape`.

    Args:
        measured: times of verify passes. Where they show that a larger draft pays and the user names no shape, that
            larger draft is asked for.
    """
    shape = draft_shape(spec, depth, nodes, branching)
    if depth is not None or nodes is not None or branching is not None:
        return shape
    if spec.exact_trees and spec.max_tree > DEFAULT_TREE.max_nodes:
        shape = DEFAULT_TREE
    if measured is None:
        return shape
    most = LARGEST_TREE if spec.exact_trees else LARGEST_CHAIN
    limit = most.clamp(spec.max_tree - 1, spec.max_tree - 1)
    seconds = [measured.at(rows) for rows in range(1, limit.max_nodes + 2)]
    paying = paying_shape(seconds, LevelAcceptance.expected(), limit)
    return paying if paying.max_nodes > shape.max_nodes else shape


def draft_shape(spec: EngineSpec, depth: int | None, nodes: int | None, branching: int | None) -> DraftShape:
    """The largest tree to ask any drafter for; None leaves a number to us.

    Raises:
        UsageError: the engine cannot verify such a tree, or not exactly.
    """
    largest = spec.max_tree - 1
    if nodes is not None and nodes > largest:
        raise UsageError(f"this bundle verifies drafts of at most {largest} nodes: lower --draft-nodes from {nodes}")
    if (branching or 1) > 1 and not spec.exact_trees:
        raise UsageError(
            "this bundle's weights are exact for chains only: leave --draft-branching at 1, or give --allow-inexact"
        )
    branching = branching or 1
    depth = depth or (nodes if nodes is not None and branching == 1 else DEFAULT_DRAFT_DEPTH)
    return DraftShape(min(nodes or depth * branching, largest), depth, branching)


def paying_shape(seconds: Sequence[float], acceptance: LevelAcceptance, limit: DraftShape) -> DraftShape:
    """The largest draft shape that pays where only the times of verify passes are known: no hub, link or drafter yet.

    Each draft token must be expected to bring more tokens than plain decoding gives in the time of its row. The shape
    has at least one draft token, so that the acceptance rate is seen.

    Args:
        seconds: seconds of passes over 1, 2 .. `limit.max_nodes + 1` rows, the first above 0.
        acceptance: expected acceptance rates.
        limit: the largest shape allowed.
    """
    best, most = DraftShape(1, 1), float("-inf")
    for depth in range(1, min(limit.max_depth, limit.max_nodes) + 1):
        accepted = acceptance.accepted(limit.max_nodes, depth, limit.branching)
        for nodes in range(depth, len(accepted)):
            net = accepted[nodes] - (seconds[nodes] / seconds[0] - 1)
            if net > most:
                most = net
                best = DraftShape(nodes, depth, limit.branching if nodes > depth else 1)
    return best


class DraftCostModel:
    """The cost model of one drafter's trees at this target: their expected tokens against the time of their rows.

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
        Afterwards, and where none were measured, it is `limit`.
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
