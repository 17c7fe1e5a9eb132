"""Drafting along known texts gives the rounds that a target would have run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from starsd_edge.bench.draft_replay import Features, Passage, compare, rounds_from, through, walk
from starsd_edge.speculation.ngram import NgramIndex
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import Round, RoundStats
from starsd_jetson.decoder import decode
from starsd_jetson.drafting import NgramDrafts
from tests.support.decoding import PROMPT, letters, request
from tests.support.prefix_engine import PrefixEngine

SHAPE = DraftShape(6, 4, 2)


class NgramSession:
    """n-grams as a drafter's session."""

    def __init__(self, t_first: int) -> None:
        self._index = NgramIndex()
        self._index.append([t_first])

    def extend(self, first_row: int, ids: Sequence[int], features: Features | None) -> None:
        self._index.append(ids)

    def draft(self, shape: DraftShape) -> DraftTree:
        return self._index.draft(shape)


class Scripted:
    """The same tree under every token; remembers the rows it was given."""

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree
        self.rows: list[tuple[int, tuple[int, ...]]] = []
        self.features: list[Features | None] = []

    def extend(self, first_row: int, ids: Sequence[int], features: Features | None) -> None:
        self.rows.append((first_row, tuple(ids)))
        self.features.append(features)

    def draft(self, shape: DraftShape) -> DraftTree:
        return self._tree.clip(shape.max_nodes, shape.max_depth)


class EveryDraft(NgramDrafts):
    """Knows nothing of what rows cost, so nothing is left out."""

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        """Forgotten."""


@pytest.mark.parametrize("seed", range(6))
def test_the_rounds_are_those_of_a_target_that_decodes(seed: int) -> None:
    seen = RoundStats()
    answer = decode(
        PrefixEngine(seed),
        letters(eos_ids=()),
        request(shape=SHAPE),
        EveryDraft(),
        clock=lambda: 0.0,
        on_round=seen.add,
    )
    passage = Passage([*PROMPT, *answer.token_ids], len(PROMPT), None)

    replayed = walk(rounds_from(passage, NgramSession(PROMPT[0]), SHAPE))

    assert (replayed.rounds, replayed.emitted) == (seen.rounds, seen.emitted)
    assert (replayed.level_trials, replayed.level_hits) == (seen.level_trials, seen.level_hits)


def test_each_start_is_judged_by_what_follows_it() -> None:
    tree = DraftTree(np.array([5, 6, 7]), np.array([-1, 0, -1]))
    passage = Passage([1, 2, 5, 6, 9, 7, 5], 2, None)
    rounds = rounds_from(passage, Scripted(tree), DraftShape(3, 2, 2))
    # roots 5, 6, 9 and 7; the answer begins with 5
    assert [round_.accepted for round_ in rounds] == [0, 0, 1, 0]
    assert [round_.levels_offered for round_ in rounds] == [1, 1, 1, 0]  # the last token needs no guess
    assert [round_.emitted for round_ in rounds] == [1, 1, 2, 1]
    assert walk(rounds).tokens_per_round == pytest.approx(4 / 3)


def test_a_session_is_given_every_row_once_with_the_feature_of_its_position() -> None:
    features = np.arange(12, dtype=np.float16).reshape(6, 2)
    session = Scripted(DraftTree.empty())
    rounds_from(Passage([9, 8, 7, 6, 5, 4], 3, features), session, SHAPE)
    assert session.rows == [(0, (8, 7, 6)), (3, (5,))]
    assert [part.tolist() for part in session.features if part is not None] == [
        features[:3].tolist(),
        features[3:4].tolist(),
    ]


def test_a_way_that_loses_a_tenth_is_seen_to() -> None:
    better = [[Round(emitted=2)] * 50 for _ in range(30)]
    worse = [[Round(emitted=2)] * 40 + [Round(emitted=1)] * 10 for _ in range(30)]
    found = compare(worse, better, np.random.default_rng(1))
    assert found.change == pytest.approx(-0.1)
    assert found.low <= found.change <= found.high
    assert found.starts == 1500


def test_a_codec_is_applied_to_the_features_alone() -> None:
    passage = Passage([1, 2, 3], 1, np.ones((3, 2), np.float16))
    coarse = through(passage, lambda features: features * 2)
    assert coarse.ids == passage.ids
    assert coarse.features is not None
    assert (coarse.features == 2).all()
    assert through(Passage([1], 1, None), lambda features: features * 2).features is None
