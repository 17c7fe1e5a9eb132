"""How often draft tokens are accepted: trees judged by a text or by rounds, and the best trees that follow from it."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from starsd_edge.planning.acceptance import FIRST_ACCEPTANCE, AcceptanceEstimator, LevelAcceptance
from starsd_edge.planning.law import chain_tokens
from starsd_edge.protocol.counters import PathStep, walk
from starsd_edge.protocol.messages import Draft
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


# Rounds that are judged as a whole, as at the hub.


@pytest.mark.parametrize(("acceptance", "depth"), [(0.5, 1), (0.7, 5), (0.9, 12), (0.0, 3), (1.0, 4)])
def test_chains_are_worth_what_the_law_says(acceptance: float, depth: int) -> None:
    worth = LevelAcceptance.alike(acceptance).accepted(depth, depth, 1)
    tokens = [chain_tokens(acceptance, nodes) for nodes in range(depth + 1)]
    assert [1 + each for each in worth] == pytest.approx(tokens)


def test_a_tree_takes_the_most_likely_nodes() -> None:
    """Against all trees of three nodes, by hand: values of the nodes are .5 .2, .5 * .4 .5 * .16, .2 * .4 ..."""
    guesses = LevelAcceptance.by_ratio((0.5, 0.4), (1.0, 0.4))
    gains = np.diff(guesses.accepted(6, 2, 2))
    assert gains == pytest.approx(sorted([0.5, 0.2, 0.2, 0.08, 0.08, 0.032], reverse=True))
    assert guesses.accepted(6, 2, 1) == pytest.approx([0, 0.5, 0.7]), "a chain ends with its depth"
    assert guesses.accepted(6, 1, 2) == pytest.approx([0, 0.5, 0.7]), "a level with its children"
    assert guesses.accepted(6, 0, 2) == [0.0]


def test_children_never_come_true_more_often_than_always() -> None:
    for survival, ratio in product((0.3, 0.9, 1.0), (0.1, 0.9)):
        guesses = LevelAcceptance.by_ratio((survival,), (1.0, ratio, ratio))
        assert sum(guesses.at(1, rank) for rank in (1, 2, 3)) <= 1 + 1e-12
        assert guesses.at(1, 4) == 0


def rounds(survival: tuple[float, ...], depth: int, count: int, seed: int) -> list[list[PathStep]]:
    """Judged chains of a drafter whose guesses come true with these probabilities."""
    random = np.random.default_rng(seed)
    judged = []
    for _ in range(count):
        steps = []
        for level in range(depth):
            hit = bool(random.random() < survival[level])
            steps.append(PathStep(1, int(hit)))
            if not hit:
                break
        judged.append(steps)
    return judged


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_survival_does_not_depend_on_how_deep_the_drafts_were(depth: int) -> None:
    """Accepted over offered would say .37 at a depth of 4. About the last 64 rounds count: 0.15 is three standard
    deviations of a share of so many.
    """
    estimator = AcceptanceEstimator(follows_changes=False)
    for steps in rounds((0.8, 0.5, 0.4, 0.3), depth, 2000, seed=4):
        estimator.learn(steps)
    survival = estimator.rates.survival
    assert len(survival) == depth
    assert survival[0] == pytest.approx(0.8, abs=0.15)
    assert depth == 1 or survival[1] == pytest.approx(0.5, abs=0.19)


def test_ranks_are_compared_only_where_both_were_offered() -> None:
    estimator = AcceptanceEstimator(follows_changes=False)
    for _ in range(200):
        estimator.learn([PathStep(1, 1)])  # chains that always hit say nothing of the second child
        estimator.learn([PathStep(2, 1)])
        estimator.learn([PathStep(2, 2)])
    rates = estimator.rates
    assert rates.at(1, 1) == pytest.approx(2 / 3, abs=0.05)
    assert rates.at(1, 2) == pytest.approx(1 - rates.at(1, 1), abs=0.01), "always right where the first was not"
    assert rates.at(1, 3) < 0.01, "a third was never offered"


def test_what_is_not_known_is_expected_to_be_like_the_level_above() -> None:
    assert list(AcceptanceEstimator(follows_changes=False).rates.survival) == [FIRST_ACCEPTANCE]
    estimator = AcceptanceEstimator(follows_changes=False)
    for _ in range(60):
        estimator.learn([PathStep(1, 1), PathStep(1, 0)])
    assert estimator.rates.at(1, 1) > 0.95
    assert estimator.rates.at(5, 1) == estimator.rates.at(2, 1) < 0.05


def test_a_drafter_that_changes_is_followed_and_after_doubt_at_once() -> None:
    slow, quick = AcceptanceEstimator(follows_changes=False), AcceptanceEstimator(follows_changes=False)
    for _ in range(300):
        slow.learn([PathStep(1, 0)])
        quick.learn([PathStep(1, 0)])
    quick.doubt()
    for _ in range(8):
        slow.learn([PathStep(1, 1)])
        quick.learn([PathStep(1, 1)])
    assert slow.rates.at(1, 1) < 0.2 < 0.7 < quick.rates.at(1, 1)
    for _ in range(200):
        slow.learn([PathStep(1, 1)])
    assert slow.rates.at(1, 1) > 0.9


def test_a_copy_goes_on_by_itself() -> None:
    one = AcceptanceEstimator(follows_changes=False)
    one.learn([PathStep(1, 1)])
    other = deepcopy(one)
    before = one.rates
    other.learn([PathStep(1, 0), PathStep(1, 1)])
    assert one.rates == before != other.rates


def test_hub_and_target_learn_the_same_from_the_same_trees() -> None:
    """The target follows its text token by token, the hub walks a tree by the rows of the next request."""
    rng = np.random.default_rng(8)
    target, hub = AcceptanceEstimator(), AcceptanceEstimator()
    for _ in range(300):
        tree, text = random_tree(rng, DraftShape(12, 4, 3), 6), rng.integers(0, 6, size=4).tolist()
        target.expect(tree, tree.depth)
        target.append(text)
        hub.learn(walk(Draft(b"", 1, 0, tree.tokens.tolist(), tree.parents.tolist(), 0, 0, 0), text))
    assert hub.rates.rates
    assert [list(level) for level in hub.rates.rates[:3]] == [list(level) for level in target.rates.rates[:3]]


def test_a_rank_that_is_never_offered_is_expected_to_be_worse_than_the_ranks_that_are() -> None:
    """Chains that are always wrong: a second child, which nobody has seen, is no way out."""
    estimator = AcceptanceEstimator(follows_changes=False)
    for _ in range(40):
        estimator.learn([PathStep(1, 0)])
    assert estimator.rates.at(1, 2) < estimator.rates.at(1, 1) < 0.01
