"""Draft trees against their definition: a tree is the list of its paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree
from tests.support.trees import Path, is_chain, paths_of, random_tree, tree_of, trees

tokens = st.lists(st.integers(0, 3), max_size=6)


def strip(paths: list[Path], beginning: Path) -> list[Path]:
    """What hangs below a path, in order."""
    depth = len(beginning)
    return [path[depth:] for path in paths if path[:depth] == beginning and len(path) > depth]


@given(trees())
def test_depths_children_and_walk(tree: DraftTree) -> None:
    paths = paths_of(tree)
    assert tree.depths.tolist() == [len(path) for path in paths]
    assert tree.depth == max(map(len, paths), default=0)
    for node, path in enumerate(paths):
        assert tree.walk(path) == node
        assert tree.children[int(tree.parents[node])][path[-1]] == node
    assert sum(map(len, tree.children.values())) == len(tree)


@given(trees(), tokens)
def test_walk_leaves_the_tree_exactly_when_no_path_is_so(tree: DraftTree, emitted: list[int]) -> None:
    paths = paths_of(tree)
    node = tree.walk(emitted)
    if not emitted:
        assert node == ROOT
    else:
        assert node == (paths.index(tuple(emitted)) if tuple(emitted) in paths else None)


@given(trees(), st.integers(0, 1000), st.integers(0, 100))
def test_verify_arrays(tree: DraftTree, base_len: int, root: int) -> None:
    rows = [(), *paths_of(tree)]
    expected = [[seer[: len(seen)] == seen for seen in rows] for seer in rows]
    assert tree.verify_mask().tolist() == expected
    assert tree.verify_tokens(root).tolist() == [root, *(path[-1] for path in rows[1:])]
    assert tree.verify_positions(base_len).tolist() == [base_len + len(path) for path in rows]
    assert tree.verify_tokens(root).dtype == tree.verify_positions(base_len).dtype == np.int64


@given(trees())
def test_a_mask_is_causal_and_transitive(tree: DraftTree) -> None:
    mask = tree.verify_mask()
    assert mask.diagonal().all()
    assert mask[:, 0].all()
    assert not np.triu(mask, 1).any()
    assert np.array_equal((mask.astype(int) @ mask.astype(int)) > 0, mask)


@given(trees(), st.data())
def test_below(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    paths = paths_of(tree)
    assert paths_of(tree.below(node)) == strip(paths, paths[node] if node != ROOT else ())


@given(trees(), tokens)
def test_rebase(tree: DraftTree, emitted: list[int]) -> None:
    assert paths_of(tree.rebase(emitted)) == strip(paths_of(tree), tuple(emitted))


@given(trees(), tokens, tokens)
def test_rebasing_twice_is_rebasing_at_once(tree: DraftTree, first: list[int], second: list[int]) -> None:
    assert tree.rebase(first).rebase(second) == tree.rebase(first + second)


@given(trees(), st.integers(-1, 12), st.integers(-1, 6))
def test_clip(tree: DraftTree, max_nodes: int, max_depth: int) -> None:
    expected = [path for path in paths_of(tree) if len(path) <= max_depth][: max(0, max_nodes)]
    assert paths_of(tree.clip(max_nodes, max_depth)) == expected


@given(trees(), st.integers(1, 3))
def test_clip_keeps_the_likeliest_children(tree: DraftTree, branching: int) -> None:
    paths = paths_of(tree)

    def is_likely(path: tuple[int, ...]) -> bool:
        siblings = [other[-1] for other in paths if other[:-1] == path[:-1]]
        return siblings.index(path[-1]) < branching and (len(path) == 1 or is_likely(path[:-1]))

    assert paths_of(tree.clip(99, 99, branching)) == [path for path in paths if is_likely(path)]
    assert paths_of(tree.clip(2, 2, branching)) == [path for path in paths if is_likely(path) and len(path) <= 2][:2]


@given(st.lists(st.integers(0, 9), max_size=8))
def test_chain(chain: list[int]) -> None:
    tree = DraftTree.chain(chain)
    assert is_chain(tree)
    assert paths_of(tree) == [tuple(chain[: end + 1]) for end in range(len(chain))]
    assert tree.verify_mask().tolist() == np.tri(len(chain) + 1, dtype=bool).tolist()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 6)), max_size=6))
def test_arrays_that_are_no_preorder_tree_are_refused(nodes: list[tuple[int, int]]) -> None:
    tokens = np.array([token for token, _ in nodes], dtype=np.int64)
    parents = np.array([parent for _, parent in nodes], dtype=np.int32)
    if _is_preorder_tree(tokens.tolist(), parents.tolist()):
        tree = DraftTree(tokens, parents)
        assert tree == tree_of(paths_of(tree))
    else:
        with pytest.raises(ValueError, match=r"preorder|twice"):
            DraftTree(tokens, parents)


def _is_preorder_tree(tokens: list[int], parents: list[int]) -> bool:
    for node, parent in enumerate(parents):
        lineage = {ROOT}
        ancestor = node - 1
        while ancestor >= 0:
            lineage.add(ancestor)
            ancestor = parents[ancestor]
        if parent not in lineage:
            return False
    return len(set(zip(parents, tokens, strict=True))) == len(tokens)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="as many parents as tokens"):
        DraftTree(np.array([1, 2]), np.array([-1]))


def test_shapes_clamp_to_nothing_less_than_nothing() -> None:
    assert DraftShape(10, 5, 2).clamp(4, 9) == DraftShape(4, 5, 2)
    assert DraftShape(10, 5, 2).clamp(-3, -1) == DraftShape(0, 0, 2)


def test_random_trees_fit_their_shape() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = DraftShape(int(rng.integers(0, 10)), int(rng.integers(0, 5)), int(rng.integers(1, 4)))
        tree = random_tree(rng, shape, 6)
        assert len(tree) <= shape.max_nodes
        assert tree.depth <= shape.max_depth
        assert all(len(children) <= shape.branching for children in tree.children.values())
