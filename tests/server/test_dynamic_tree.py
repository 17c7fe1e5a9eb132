"""EAGLE-2's dynamic tree on models small enough to list every path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree
from starsd_server.drafters.dynamic_tree import Below, Growth, Node, grow_together, top_candidates
from tests.support.trees import is_chain

WIDE = 10_000
"""Expands every node of a level."""
KS = (1, 2, 4, 8)
DEPTHS = range(1, 7)

Model = Callable[[tuple[int, ...]], npt.NDArray[np.float32]]
"""Logits after a path of guessed tokens."""


def random_model(seed: int, vocab: int) -> Model:
    """Logits that depend on the whole path."""

    def logits(path: tuple[int, ...]) -> npt.NDArray[np.float32]:
        return np.random.default_rng([seed, *path]).standard_normal(vocab).astype(np.float32) * 2

    return logits


def flat_model(vocab: int) -> Model:
    """Every token is as likely as every other."""
    return lambda path: np.zeros(vocab, dtype=np.float32)


def certain_model(vocab: int) -> Model:
    """One token has probability 1 to the last bit: the child scores as much as its parent."""

    def logits(path: tuple[int, ...]) -> npt.NDArray[np.float32]:
        row = np.full(vocab, -1e4, dtype=np.float32)
        row[len(path) % vocab] = 1e4
        return row

    return logits


class Grower:
    """Grows trees of a model and counts what that took."""

    def __init__(self, model: Model, vocab: int) -> None:
        self.model = model
        self.vocab = vocab
        self.expanded: list[int] = []
        self.paths: dict[int, tuple[int, ...]] = {ROOT: ()}

    def candidates(self, path: tuple[int, ...]) -> Below:
        found = top_candidates(self.model(path), self.vocab)
        return list(zip(found.tokens.tolist(), found.scores.tolist(), strict=True))

    def expand(self, nodes: Sequence[Node]) -> list[Below]:
        self.expanded.append(len(nodes))
        for node in nodes:
            self.paths[node.number] = (*self.paths[node.parent], node.token)
        return [self.candidates(self.paths[node.number]) for node in nodes]

    def begin(self, shape: DraftShape, width: int, repeated: Below = ()) -> Growth:
        return Growth(shape, width, self.candidates(()), repeated)

    def grow(self, shape: DraftShape, width: int, repeated: Below = ()) -> DraftTree:
        growth = self.begin(shape, width, repeated)
        grow_together([growth], lambda nodes: [self.expand(nodes[0])])
        return growth.tree()


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens that lead to each node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def score(model: Model, path: tuple[int, ...]) -> float:
    """Sum of log-probabilities, in float64."""
    total = 0.0
    for at, token in enumerate(path):
        row = model(path[:at]).astype(np.float64)
        total += float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()))
    return total


def assert_sound(tree: DraftTree, shape: DraftShape, model: Model) -> None:
    """Within its shape, preorder (which `DraftTree` refuses to be without), children by falling score."""
    assert len(tree) <= shape.max_nodes
    assert tree.depth <= shape.max_depth
    paths = paths_of(tree)
    for children in tree.children.values():
        assert len(children) <= shape.branching
        scores = [score(model, paths[node]) for node in children.values()]
        assert all(first >= second - 1e-6 for first, second in pairwise(scores))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize(
    ("model", "vocab"),
    [(random_model(1, 30), 30), (random_model(2, 3), 3), (flat_model(5), 5), (certain_model(4), 4)],
    ids=["random", "three tokens", "ties", "certain"],
)
def test_trees_of_every_shape_are_trees_within_it(model: Model, vocab: int, k: int, depth: int) -> None:
    for nodes in (1, 2, 7, 31, 59):
        shape = DraftShape(nodes, depth, k)
        grower = Grower(model, vocab)
        tree = grower.grow(shape, k)
        assert_sound(tree, shape, model)
        assert len(grower.expanded) <= depth - 1
        assert max(grower.expanded, default=0) <= k
        most = min(k, vocab) * (1 + (depth - 1) * k * min(k, vocab))
        assert len(tree) >= min(nodes, min(k, vocab), most)


@pytest.mark.parametrize("depth", DEPTHS)
def test_one_branch_is_the_greedy_path(depth: int) -> None:
    model = random_model(3, 12)
    path: tuple[int, ...] = ()
    for _ in range(depth):
        path = (*path, int(model(path).argmax()))
    assert Grower(model, 12).grow(DraftShape(59, depth, 1), 1) == DraftTree.chain(path)
    assert Grower(model, 12).grow(DraftShape(2, depth, 1), 1) == DraftTree.chain(path[:2])


@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize("nodes", [1, 3, 8, 20, 59])
def test_with_every_node_expanded_the_tree_is_the_best_of_all_paths(nodes: int, vocab: int) -> None:
    for seed in range(5):
        model = random_model(seed, vocab)
        every = [path for depth in range(1, 5) for path in product(range(vocab), repeat=depth)]
        best = sorted(every, key=lambda path: -score(model, path))[:nodes]
        tree = Grower(model, vocab).grow(DraftShape(nodes, 4, vocab), WIDE)
        assert set(paths_of(tree)) == set(best)


def published(model: Model, vocab: int, nodes: int, depth: int, k: int) -> set[tuple[int, ...]]:
    """The tree of EAGLE-2, section 4, step by step: the k best of a level grow, the best of all seen stay."""
    first = top_candidates(model(()), k)
    level = [((token,), value) for token, value in zip(first.tokens.tolist(), first.scores.tolist(), strict=True)]
    pool = list(level)
    for _ in range(depth - 1):
        children = []
        for path, value in sorted(level, key=lambda entry: -entry[1])[:k]:
            below = top_candidates(model(path), min(k, vocab))
            children += [
                ((*path, token), value + log_p)
                for token, log_p in zip(below.tokens.tolist(), below.scores.tolist(), strict=True)
            ]
        level = children
        pool += level
    return {path for path, _ in sorted(pool, key=lambda entry: -entry[1])[:nodes]}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("k", [2, 4, 8])
def test_skipping_nodes_whose_children_cannot_be_kept_changes_no_tree(k: int, depth: int) -> None:
    for seed, nodes in product(range(5), (3, 10, 40)):
        model = random_model(seed, 25)
        tree = Grower(model, 25).grow(DraftShape(nodes, depth, k), k)
        assert set(paths_of(tree)) == published(model, 25, nodes, depth, k)


def test_a_small_tree_of_a_deep_shape_costs_few_passes() -> None:
    grower = Grower(flat_model(8), 8)
    assert len(grower.grow(DraftShape(8, 6, 8), 4)) == 8
    assert grower.expanded == []
    grower = Grower(certain_model(4), 4)
    assert is_chain(grower.grow(DraftShape(3, 6, 4), 4))
    assert grower.expanded == [1, 1]


def test_equal_scores_keep_parents_before_children_and_the_lowest_ids() -> None:
    tree = Grower(flat_model(3), 3).grow(DraftShape(5, 4, 3), WIDE)
    assert paths_of(tree) == [(0,), (0, 0), (0, 1), (1,), (2,)]


def test_where_children_score_as_much_as_their_parents_no_child_stays_without_its_own() -> None:
    """Two equal tokens, each with a child of probability 1: four equal scores for three places."""

    def logits(path: tuple[int, ...]) -> npt.NDArray[np.float32]:
        row = np.full(4, -1e4, dtype=np.float32)
        row[[0, 1] if not path else [2]] = 1e4
        return row

    tree = Grower(logits, 4).grow(DraftShape(3, 3, 4), WIDE)
    assert paths_of(tree) == [(0,), (0, 2), (1,)]


@pytest.mark.parametrize("shape", [DraftShape(0, 3, 2), DraftShape(5, 0, 2), DraftShape(5, 3, 0)])
def test_where_nothing_may_be_kept_nothing_is_expanded(shape: DraftShape) -> None:
    grower = Grower(random_model(1, 9), 9)
    assert len(grower.grow(shape, 4)) == 0
    assert grower.expanded == []


def test_trees_that_grow_together_are_those_that_grow_alone_and_share_their_levels() -> None:
    shapes = [DraftShape(40, 6, 4), DraftShape(8, 6, 1), DraftShape(1, 1, 1), DraftShape(0, 4, 4), DraftShape(30, 3, 8)]
    widths = [6, 1, 1, 3, 8]
    alone = [Grower(random_model(seed, 25), 25) for seed in range(5)]
    trees = [grower.grow(shape, width) for grower, shape, width in zip(alone, shapes, widths, strict=True)]
    growers = [Grower(random_model(seed, 25), 25) for seed in range(5)]
    calls: list[list[int]] = []

    def expand(nodes: Sequence[Sequence[Node]]) -> list[list[Below]]:
        calls.append([len(mine) for mine in nodes])
        assert len({node.level for mine in nodes for node in mine}) == 1
        return [grower.expand(mine) if mine else [] for grower, mine in zip(growers, nodes, strict=True)]

    growths = [grower.begin(shape, width) for grower, shape, width in zip(growers, shapes, widths, strict=True)]
    grow_together(growths, expand)
    assert [growth.tree() for growth in growths] == trees
    assert [grower.expanded for grower in growers] == [grower.expanded for grower in alone]
    assert len(calls) == max(len(grower.expanded) for grower in alone) == 5
    assert calls[0][2:4] == [0, 0]
    assert calls[-1][4] == 0


def test_a_path_that_the_text_took_before_stands_in_the_tree_as_far_as_it_is_likely() -> None:
    """Its tokens are none that the model would guess, and the model goes on below it."""
    model = random_model(6, 20)
    likely: Below = [(100, -0.1), (101, -0.1), (102, -0.1)]
    tree = Grower(model, 20).grow(DraftShape(12, 4, 4), 4, likely)
    paths = paths_of(tree)
    assert paths[:3] == [(100,), (100, 101), (100, 101, 102)]
    assert any(path[:3] == (100, 101, 102) for path in paths[3:])
    unlikely: Below = [(100, -50.0), (101, -0.1)]
    assert Grower(model, 20).grow(DraftShape(12, 4, 4), 4, unlikely) == Grower(model, 20).grow(DraftShape(12, 4, 4), 4)


def test_a_path_that_turns_off_the_tree_is_given_up_there() -> None:
    path: Below = [(100, -0.1), (101, -60.0), (102, -0.1)]
    paths = paths_of(Grower(random_model(6, 20), 20).grow(DraftShape(59, 4, 4), 4, path))
    assert (100,) in paths
    assert not any(102 in path for path in paths)


def test_a_token_that_the_model_sees_too_gets_the_better_score_and_no_second_place() -> None:
    model = random_model(7, 12)
    ranked = Grower(model, 12).candidates(())
    second, third = ranked[1][0], ranked[2][0]
    tree = Grower(model, 12).grow(DraftShape(4, 1, 4), 4, [(third, -0.01)])
    assert tree.tokens.tolist()[:2] == [third, ranked[0][0]]
    same = Grower(model, 12).grow(DraftShape(4, 1, 4), 4, [(second, -90.0)])
    assert same == Grower(model, 12).grow(DraftShape(4, 1, 4), 4)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("k", KS)
def test_trees_with_a_path_keep_within_their_shape(k: int, depth: int) -> None:
    for nodes, seed in product((1, 2, 7, 31), range(4)):
        path: Below = [(30 + level, -0.3 * seed) for level in range(6)]
        tree = Grower(random_model(seed, 30), 30).grow(DraftShape(nodes, depth, k), k, path)
        assert len(tree) <= nodes
        assert tree.depth <= depth
        assert max(len(children) for children in tree.children.values()) <= k
