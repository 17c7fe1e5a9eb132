"""How large a draft pays where only the time of verify passes is known, and what of a tree is worth verifying."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from starsd_edge.planning.acceptance import LevelAcceptance
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.draft_size import (
    CLEAR_PRUNING,
    DEFAULT_TREE,
    LARGEST_CHAIN,
    LARGEST_TREE,
    DraftCostModel,
    hub_draft_shape,
    paying_shape,
)
from tests.support.prefix_engine import PrefixEngine
from tests.support.trees import random_tree, tree_of


def cost_model(row_share: float, path: list[int], tree: DraftTree, times: int = 100) -> DraftCostModel:
    """Every row costs so much of a plain step, and trees like this one came true along this path."""
    weighs = DraftCostModel()
    for _ in range(3):
        for rows in (1, 5, 9, 17):
            weighs.times.add(rows, 0.03 * (1 + row_share * (rows - 1)))
    for _ in range(times):
        weighs.estimator.expect(tree, tree.depth, path)
    return weighs


def test_nodes_that_never_come_true_are_not_verified() -> None:
    chain = DraftTree.chain([1, 2, 3, 4])
    assert cost_model(0.05, [1, 2, 9], chain).worth(chain) == DraftTree.chain([1, 2])
    assert cost_model(0.05, [9], chain).worth(chain) == DraftTree.empty()
    assert cost_model(0.05, [1, 2, 3, 4], chain).worth(chain) == chain


def test_a_row_that_costs_as_much_as_a_step_pays_for_certain_guesses_only() -> None:
    chain = DraftTree.chain([1, 2])
    sure, doubtful = cost_model(0.9, [1, 2], chain), cost_model(0.9, [1, 2], chain)
    for _ in range(10):
        doubtful.estimator.expect(chain, 2, [9])
        doubtful.estimator.expect(chain, 2, [1, 2])
    assert sure.worth(chain) == chain
    assert doubtful.worth(chain) == DraftTree.empty()


def test_time_that_gives_more_elsewhere_prunes_more() -> None:
    chain = DraftTree.chain([1, 2, 3])
    weighs = cost_model(0.1, [1, 2, 3], chain, times=0)
    assert weighs.worth(chain) == chain
    assert len(weighs.worth(chain, tokens_per_s=5 / 0.03)) < 3


def test_branches_that_pay_stay_in_order() -> None:
    tree = tree_of([[1, 2], [5, 6], [7]])
    assert cost_model(0.05, [5, 6], tree).worth(tree) == tree_of([[5, 6]])


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_is_a_part_of_the_tree_that_no_other_part_of_the_same_order_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weighs = cost_model(0.08, [], DraftTree.empty(), times=0)
    for _ in range(40):
        tree = random_tree(rng, DraftShape(12, 4, 3), 6)
        kept = weighs.worth(tree)
        paths = {tuple(path) for path in _paths(tree)}
        assert {tuple(path) for path in _paths(kept)} <= paths
        curve = weighs.times.curve(len(tree) + 1)
        odds = np.sort(weighs.estimator.odds(tree))[::-1]
        nets = [odds[:n].sum() - (curve[n] - curve[0]) / curve[0] for n in range(len(tree) + 1)]
        assert len(kept) == len(tree) or nets[len(kept)] == pytest.approx(max(nets))
        assert nets[len(kept)] >= max(nets) - CLEAR_PRUNING * (1 + odds.sum()) - 1e-9
        weighs.estimator.expect(tree, 4, rng.integers(0, 6, size=4).tolist())


def _paths(tree: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = []
    for node, parent in enumerate(tree.parents.tolist()):
        above = paths[parent] if parent >= 0 else []
        paths.append([*above, int(tree.tokens[node])])
    return paths


def test_before_anything_was_timed_trees_are_taken_as_they_are() -> None:
    chain = DraftTree.chain([1, 2, 3])
    assert DraftCostModel().worth(chain) == chain
    assert not DraftCostModel().retimes_plain(chain)


def test_a_tree_whose_last_nodes_gain_or_cost_next_to_nothing_is_left_as_its_drafter_made_it() -> None:
    tree = tree_of([[1, 2], [3]])
    for _ in range(2):
        assert cost_model(0.02, [1, 2], tree).worth(tree) == tree
    assert cost_model(0.2, [1, 2], tree).worth(tree) == tree_of([[1, 2]])


# The shape that pays by the times of verify passes.

LIMIT = DraftShape(8, 4, 4)


def line(share: float, rows: int = 9) -> list[float]:
    """Every row costs this share of the first."""
    return [0.02 * (1 + share * row) for row in range(rows)]


def test_free_rows_are_all_asked_for() -> None:
    assert paying_shape(line(0.0), LevelAcceptance.expected(0.7), LIMIT) == LIMIT


def test_the_dearer_a_row_the_smaller_the_draft() -> None:
    shapes = [
        paying_shape(line(share), LevelAcceptance.expected(0.7), LIMIT) for share in (0.0, 0.1, 0.2, 0.3, 0.45, 0.6)
    ]
    assert all(one.max_nodes >= other.max_nodes for one, other in itertools.pairwise(shapes))
    assert shapes[0].max_nodes > shapes[2].max_nodes > shapes[-1].max_nodes == 1
    assert [shape.max_depth for shape in shapes[2:]] == [4, 3, 2, 1], "0.7 to the fourth is 0.24"


def test_one_guess_is_asked_for_even_where_none_pays() -> None:
    assert paying_shape(line(5.0), LevelAcceptance.expected(0.7), LIMIT) == DraftShape(1, 1)


def test_a_step_in_the_curve_ends_the_draft_before_it() -> None:
    seconds = [0.02, 0.02, 0.02, 0.02, 0.06, 0.06, 0.06, 0.06, 0.06]
    assert paying_shape(seconds, LevelAcceptance.expected(0.7), LIMIT).max_nodes == 3


@pytest.mark.parametrize("limit", [DraftShape(3, 8), DraftShape(8, 2, 2), DraftShape(1, 1)])
def test_limits_hold(limit: DraftShape) -> None:
    shape = paying_shape(line(0.0), LevelAcceptance.expected(0.9), limit)
    assert shape == shape.within(limit)
    assert shape.max_depth == min(limit.max_depth, limit.max_nodes), "free rows take all that there is"


# The largest draft that a hub is asked for.


@pytest.mark.parametrize(
    ("said", "exact", "shape"),
    [
        ((None, None, None), True, DEFAULT_TREE),
        ((None, None, None), False, DraftShape(4, 4, 1)),
        ((6, None, None), True, DraftShape(6, 6, 1)),
        ((None, 5, None), True, DraftShape(5, 5, 1)),
        ((3, 9, 2), True, DraftShape(9, 3, 2)),
    ],
)
def test_a_hub_is_asked_for_a_tree_where_nothing_is_said_and_trees_are_exact(
    said: tuple[int | None, int | None, int | None], exact: bool, shape: DraftShape
) -> None:
    spec = dataclasses.replace(PrefixEngine().spec, exact_trees=exact)
    assert hub_draft_shape(spec, *said) == shape
    if said != (None, None, None):
        assert hub_draft_shape(spec, *said, FREE) == shape, "what was said stands"
    assert hub_draft_shape(spec, *said, STEEP) == shape, "the first requests are small; later ones may grow"


FREE, STEEP = VerifyCurve({1: 0.02, 64: 0.0201}), VerifyCurve({1: 0.02, 2: 0.04})


@pytest.mark.parametrize(
    ("max_tree", "exact", "shape"),
    [
        (64, True, LARGEST_TREE),
        (64, False, LARGEST_CHAIN),
        (12, True, DraftShape(11, 6, 4)),
        (3, False, DraftShape(2, 4)),
    ],
)
def test_where_rows_are_measured_to_be_free_a_hub_is_asked_for_more(
    max_tree: int, exact: bool, shape: DraftShape
) -> None:
    spec = dataclasses.replace(PrefixEngine().spec, exact_trees=exact, max_tree=max_tree)
    assert hub_draft_shape(spec, None, None, None, FREE) == shape
