"""Sample-and-match: which nodes are accepted, which rows committed, at which positions coins are tossed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starsd_edge.errors import EngineError
from starsd_edge.speculation.sampling import Choice
from starsd_edge.speculation.tree import DraftTree
from starsd_edge.speculation.verify import verify
from tests.support.trees import paths_of, tree_of, trees

VOCAB = 6


def one_hot(tokens: list[int]) -> npt.NDArray[np.float32]:
    return np.eye(VOCAB, dtype=np.float32)[tokens]


def highest(logits: npt.NDArray[np.float32], position: int, path: Sequence[int]) -> Choice:
    return Choice(int(logits.argmax()), float(position))


def test_a_chain_is_accepted_as_far_as_it_agrees() -> None:
    verdict = verify(DraftTree.chain([1, 2, 3]), one_hot([1, 2, 5, 0]), 10, highest)
    assert (verdict.rows, verdict.tokens, verdict.accepted) == ([0, 1, 2], [1, 2, 5], 2)


def test_a_whole_chain_and_the_bonus_token() -> None:
    verdict = verify(DraftTree.chain([1, 2]), one_hot([1, 2, 4]), 10, highest)
    assert (verdict.rows, verdict.tokens) == ([0, 1, 2], [1, 2, 4])


def test_an_empty_tree_gives_the_bonus_token_alone() -> None:
    verdict = verify(DraftTree.empty(), one_hot([3]), 10, highest)
    assert (verdict.rows, verdict.tokens, verdict.accepted) == ([0], [3], 0)


def test_an_unlikelier_sibling_is_stepped_into() -> None:
    tree = tree_of([[1, 2], [3, 4], [3, 5]])
    # Rows: root, 1, 1-2, 3, 3-4, 3-5.
    verdict = verify(tree, one_hot([3, 0, 0, 5, 0, 2]), 0, highest)
    assert (verdict.rows, verdict.tokens) == ([0, 3, 5], [3, 5, 2])


def test_a_token_that_stands_elsewhere_in_the_tree_is_not_accepted() -> None:
    tree = tree_of([[1, 2], [3]])
    verdict = verify(tree, one_hot([2, 0, 0, 0]), 0, highest)
    assert (verdict.rows, verdict.tokens) == ([0], [2])


def test_each_coin_is_of_the_position_of_the_token_it_decides() -> None:
    verdict = verify(DraftTree.chain([1, 2, 3]), one_hot([1, 2, 3, 4]), 100, highest)
    assert verdict.margins == [101.0, 102.0, 103.0, 104.0]


def test_only_visited_nodes_are_chosen_at() -> None:
    visited: list[int] = []

    def choose(logits: npt.NDArray[np.float32], position: int, path: Sequence[int]) -> Choice:
        visited.append(int(logits[0]))
        return Choice(int(logits[1]), 1.0)

    tree = tree_of([[1, 2], [3]])
    logits = np.array([[row, token] for row, token in enumerate([3, 2, 0, 0])], dtype=np.float32)
    verify(tree, logits, 0, choose)
    assert visited == [0, 3]


def test_each_choice_is_told_its_own_ancestors_and_no_sibling() -> None:
    paths: list[tuple[int, ...]] = []

    def choose(logits: npt.NDArray[np.float32], position: int, path: Sequence[int]) -> Choice:
        paths.append(tuple(path))
        return highest(logits, position, path)

    # Rows: root, 1, 1-1, 3, 3-3, 3-1, 3-1-1.
    verify(tree_of([[1, 1], [3, 3], [3, 1, 1]]), one_hot([3, 0, 0, 1, 0, 1, 5]), 7, choose)
    assert paths == [(), (3,), (3, 1), (3, 1, 1)]


@given(trees(VOCAB), st.lists(st.integers(0, VOCAB - 1), min_size=40, max_size=40))
def test_the_accepted_path_is_the_longest_that_the_target_itself_takes(tree: DraftTree, says: list[int]) -> None:
    rows = [(), *paths_of(tree)]
    verdict = verify(tree, one_hot(says[: len(rows)]), 0, highest)
    accepted = tuple(verdict.tokens[:-1])
    assert [rows[row] for row in verdict.rows] == [accepted[:depth] for depth in range(len(accepted) + 1)]
    assert verdict.tokens == [says[row] for row in verdict.rows]
    assert tuple(verdict.tokens) not in rows
    assert len(verdict.tokens) == len(verdict.rows) == len(verdict.margins)


def test_logits_of_another_tree_are_refused() -> None:
    with pytest.raises(EngineError, match="3 rows of logits for a verify pass of 4"):
        verify(DraftTree.chain([1, 2, 3]), one_hot([1, 2, 3]), 0, highest)
