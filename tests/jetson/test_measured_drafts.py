"""What measured verify passes change: the size of the first drafts, until rounds show what they really take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.planning.pass_times import EXPECTED_ROUNDS, VerifyCurve, VerifyCurves
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.drafting import NgramDrafts, NoDrafts
from starsd_jetson.hub_drafting import Asked, HubDrafts
from starsd_jetson.wait_policy import MOST_GAP, WaitPolicy

LIMIT = DraftShape(8, 4)
FLAT = VerifyCurves({0: VerifyCurve({1: 0.02, 9: 0.021})})
STEEP = VerifyCurves({0: VerifyCurve({1: 0.02, 2: 0.032, 9: 0.12})})
"""Every row costs 0.6 of a step: one guess that comes true 7 times in 10 pays, and no second one."""


class Channel:
    """A hub that takes no time and is right, or has no guess, which is so for every third draft. Keeps what it was
    asked for.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self.shapes: list[DraftShape] = []
        self._rows = 0
        self._ready: DraftArrived | None = None

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self._rows += len(ids)

    def extend(self) -> None:
        pass

    def request(self, shape: DraftShape) -> Asked:
        self.shapes.append(shape)
        epoch = len(self.shapes)
        tree = DraftTree.chain([7] * min(shape.max_nodes, shape.max_depth) if epoch % 3 else [])
        self._ready = DraftArrived(None, epoch, self._rows, tree, 1000, 0, 0, 0, 40)  # type: ignore[arg-type]
        self.pending = epoch
        return Asked(epoch, 50)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        arrived, self._ready, self.pending = self._ready, None, None
        return arrived

    def give_up(self) -> None:
        self.pending = None

    def close(self) -> None:
        pass


class Rounds:
    """Decodes a text of sevens with a hub; rounds take what `round_s` says of their rows."""

    def __init__(self, wait_policy: WaitPolicy, row_share: float) -> None:
        self.channel = Channel()
        self._share = row_share
        self.source = HubDrafts(lambda prompt, kind: self.channel, NoDrafts(), wait_policy, lambda: 0.0)
        self.source.begin([7], "greedy")
        self._emitted = 1
        self.rows: list[int] = []

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.source.append([7] * self._emitted, None)
            self.source.ask(LIMIT)
            tree = self.source.take().tree
            self._emitted = len(tree) + 1
            self.rows.append(len(tree) + 1)
            self.source.verified(len(tree) + 1, len(tree) + 1, 0.02 * (1 + self._share * len(tree)))


def first_request(measured: VerifyCurves | None) -> DraftShape:
    rounds = Rounds(WaitPolicy(measured=measured), 0.03)
    rounds.run(1)
    return rounds.channel.shapes[0]


def test_a_steep_curve_gives_a_smaller_first_request_than_a_flat_one() -> None:
    assert first_request(FLAT) == DraftShape(4, 4)
    assert first_request(STEEP) == DraftShape(1, 1)
    assert first_request(None) == LIMIT, "where nothing was measured all of it is asked for"


def test_rounds_that_take_less_than_measured_make_drafts_grow() -> None:
    rounds = Rounds(WaitPolicy(measured=STEEP), 0.01)
    rounds.run(40)
    depths = [shape.max_depth for shape in rounds.channel.shapes]
    assert depths[0] == 1
    assert max(depths) == 4
    assert max(rounds.rows) == 5


def test_rounds_that_take_more_than_measured_make_drafts_shrink() -> None:
    rounds = Rounds(WaitPolicy(measured=FLAT), 0.9)
    rounds.run(12)
    assert rounds.channel.shapes[0].max_depth == 4
    assert max(rounds.rows[:3]) == 5
    assert max(rounds.rows[-3:]) <= 2


def test_after_some_rounds_all_is_asked_for_again_whatever_was_measured() -> None:
    rounds = Rounds(WaitPolicy(measured=STEEP), 0.6)
    rounds.run(EXPECTED_ROUNDS + MOST_GAP + 1)
    assert rounds.channel.shapes[0] == DraftShape(1, 1)
    assert rounds.channel.shapes[-1] == LIMIT


def test_a_wait_that_was_ordered_goes_with_the_whole_shape() -> None:
    rounds = Rounds(WaitPolicy(0.5, STEEP), 0.6)
    rounds.run(3)
    assert rounds.channel.shapes == [LIMIT] * 3


@pytest.mark.parametrize(("measured", "nodes"), [(FLAT, 4), (STEEP, 1), (None, 4)])
def test_the_targets_own_guesses_are_sized_the_same_way(measured: VerifyCurves | None, nodes: int) -> None:
    source = NgramDrafts(measured)
    source.begin([1], "greedy")
    source.append([2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2], None)
    source.ask(LIMIT)
    assert source.take().tree == DraftTree.chain([3, 4, 5, 6][:nodes])


def test_the_curve_of_the_prompts_length_counts() -> None:
    curves = VerifyCurves({1: STEEP.at(0), 100: FLAT.at(0)})
    asked = {}
    for prompt in (1, 100):
        channel = Channel()
        source = HubDrafts(
            lambda prompt, kind, channel=channel: channel, NoDrafts(), WaitPolicy(measured=curves), float
        )  # type: ignore[misc]
        source.begin([7] * prompt, "greedy")
        source.append([7], None)
        source.ask(LIMIT)
        asked[prompt] = channel.shapes[0].max_nodes
    assert asked[1] == 1 < asked[100]
