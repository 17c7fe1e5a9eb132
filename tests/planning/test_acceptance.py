"""How often trees come true, judged by the text."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.planning.acceptance import AcceptanceEstimator
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.trees import random_tree, tree_of

CHAIN = DraftTree.chain([1, 2, 3])


def after(tree: DraftTree, text: list[int], times: int = 100, depth: int = 3) -> AcceptanceEstimator:
    estimator = AcceptanceEstimator()
    for _ in range(times):
        estimator.expect(tree, depth)
        estimator.append(text)
    return estimator


@pytest.mark.parametrize(
    ("text", "odds"),
    [([1, 2, 3, 4], [1, 1, 1]), ([1, 2, 9], [1, 1, 0]), ([1, 9], [1, 0, 0]), ([9, 2, 3], [0, 0, 0])],
)
def test_a_chain_is_expected_to_do_as_it_did(text: list[int], odds: list[float]) -> None:
    estimator = after(CHAIN, text)
    assert estimator.odds(CHAIN) == pytest.approx(odds, abs=0.05)
    assert estimator.reach(3) == pytest.approx([1, *odds], abs=0.05)
    assert estimator.last_came_true == (text[0] == 1)


def test_text_that_comes_piece_by_piece_or_came_before_the_tree_is_the_same() -> None:
    whole = after(CHAIN, [1, 2, 9])
    pieces, late = AcceptanceEstimator(), AcceptanceEstimator()
    for _ in range(100):
        pieces.expect(CHAIN, 3)
        for token in (1, 2, 9):
            pieces.append([token])
        late.expect(CHAIN, 3, [1, 2])
        late.append([9])
    assert pieces.reach(3) == late.reach(3) == whole.reach(3)


def test_trees_that_overlap_are_judged_each_by_itself() -> None:
    estimator = AcceptanceEstimator()
    for _ in range(50):
        estimator.expect(DraftTree.chain([1, 9]), 2)
        estimator.append([1])
        estimator.expect(DraftTree.chain([2, 3]), 2)
        estimator.append([2, 3])
    assert estimator.reach(2) == pytest.approx([1, 1, 0.5], abs=0.1)


def test_siblings_have_records_of_their_own() -> None:
    tree = tree_of([[1, 2], [5, 6], [7]])
    estimator = after(tree, [5, 6])
    by_token = dict(zip(tree.tokens.tolist(), estimator.odds(tree).tolist(), strict=True))
    assert by_token[5] > 0.9
    assert by_token[6] > 0.6
    assert max(by_token[1], by_token[2], by_token[7]) < 0.1


def test_what_is_left_of_a_late_tree_is_known_by_its_own_levels() -> None:
    estimator = after(CHAIN, [1, 9])
    assert estimator.odds(CHAIN.below(0), level=1) == pytest.approx([0, 0], abs=0.05)
    assert estimator.odds(CHAIN.below(0)) == pytest.approx([1, 0], abs=0.05)


def test_levels_that_trees_lack_are_not_reached() -> None:
    short = after(DraftTree.chain([1]), [1, 2, 3])
    assert short.reach(3) == pytest.approx([1, 1, 0, 0], abs=0.05)
    asked_for_less = after(DraftTree.chain([1]), [1, 2, 3], depth=1)
    assert asked_for_less.reach(2)[2] > 0.5, "nobody wanted a second level"


def test_a_drafter_without_guesses_reaches_nothing() -> None:
    estimator = after(DraftTree.empty(), [1])
    assert estimator.is_mostly_empty
    assert estimator.reach(2)[1] < 0.05
    assert not after(CHAIN, [9]).is_mostly_empty


def test_what_was_long_ago_fades() -> None:
    estimator = after(CHAIN, [9])
    for _ in range(20):
        estimator.expect(CHAIN, 3)
        estimator.append([1, 2, 3])
    assert estimator.reach(3)[3] > 0.5


def test_trees_of_an_earlier_text_are_not_judged_by_the_next() -> None:
    estimator = after(CHAIN, [1, 2, 3])
    before = estimator.reach(3)
    estimator.expect(CHAIN, 3)
    estimator.forget_trees()
    estimator.append([9])
    assert estimator.reach(3) == before


def test_odds_fall_from_parent_to_child_and_add_up_to_one_at_most() -> None:
    rng = np.random.default_rng(3)
    estimator = AcceptanceEstimator()
    for _ in range(200):
        tree = random_tree(rng, DraftShape(12, 4, 3), 6)
        odds = estimator.odds(tree).tolist()
        for node, parent in enumerate(tree.parents.tolist()):
            assert 0 <= odds[node] <= (odds[parent] if parent >= 0 else 1)
        for parent, children in tree.children.items():
            assert sum(odds[child] for child in children.values()) <= (odds[parent] if parent >= 0 else 1) + 1e-9
        estimator.expect(tree, 4, rng.integers(0, 6, size=4).tolist())
