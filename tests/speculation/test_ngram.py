"""Drafting from the text itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starsd_edge.speculation.ngram import NgramIndex
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.trees import paths_of, tree_of

texts = st.lists(st.integers(0, 3), max_size=40)
shapes = st.builds(DraftShape, st.integers(0, 10), st.integers(0, 5), st.integers(1, 3))


def draft(text: list[int], shape: DraftShape, max_order: int = 4, min_order: int = 2) -> DraftTree:
    index = NgramIndex(max_order, min_order)
    index.append(text)
    return index.draft(shape)


def reference(text: list[int], shape: DraftShape, max_order: int, min_order: int) -> DraftTree:
    """By scanning the whole text for each order, latest match first, and merging continuations within the shape."""
    starts: list[int] = []
    for order in range(max_order, min_order - 1, -1):
        for start in range(len(text) - 1, order - 1, -1):
            if text[start - order : start] == text[len(text) - order :] and start not in starts:
                starts.append(start)
    kept: list[tuple[int, ...]] = []
    for start in starts[: shape.max_nodes]:
        extended = list(text)
        path: tuple[int, ...] = ()
        for offset in range(shape.max_depth):
            extended.append(extended[start + offset])
            path = (*path, extended[-1])
            if path in kept:
                continue
            siblings = sum(1 for other in kept if other[:-1] == path[:-1] and len(other) == len(path))
            if len(kept) >= shape.max_nodes or siblings >= shape.branching:
                break
            kept.append(path)
    return tree_of(kept)


@given(texts, shapes, st.integers(1, 3), st.integers(0, 2))
def test_agrees_with_a_scan_of_the_whole_text(text: list[int], shape: DraftShape, min_order: int, more: int) -> None:
    assert draft(text, shape, min_order + more, min_order) == reference(text, shape, min_order + more, min_order)


@given(texts, shapes)
def test_trees_fit_their_shape(text: list[int], shape: DraftShape) -> None:
    tree = draft(text, shape)
    assert len(tree) <= shape.max_nodes
    assert tree.depth <= shape.max_depth
    assert all(len(children) <= shape.branching for children in tree.children.values())


@given(st.lists(texts, max_size=5), shapes)
def test_how_the_text_arrives_does_not_matter(parts: list[list[int]], shape: DraftShape) -> None:
    index = NgramIndex()
    for part in parts:
        index.append(part)
        index.draft(shape)  # asking changes nothing
    whole = [token for part in parts for token in part]
    assert index.draft(shape) == draft(whole, shape)
    assert len(index) == len(whole)


def test_a_longer_match_goes_before_a_later_one() -> None:
    text = [1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3]
    assert draft(text, DraftShape(1, 1)) == DraftTree.chain([50])
    assert draft(text, DraftShape(2, 1, 2)) == tree_of([[50], [60]])


def test_a_later_match_goes_before_an_earlier_one() -> None:
    assert draft([2, 3, 50, 2, 3, 60, 2, 3], DraftShape(1, 1)) == DraftTree.chain([60])


def test_a_repetition_goes_on_past_the_end_of_the_text() -> None:
    assert draft([5, 6, 5, 6, 5, 6], DraftShape(5, 5)) == DraftTree.chain([5, 6, 5, 6, 5])
    assert draft([4, 4, 4], DraftShape(3, 3)) == DraftTree.chain([4, 4, 4])


def test_continuations_share_their_beginning_and_stand_in_preorder() -> None:
    text = [1, 2, 7, 8, 0, 1, 2, 7, 9, 0, 1, 2]
    tree = draft(text, DraftShape(6, 3, 2))
    assert paths_of(tree) == [(7,), (7, 9), (7, 9, 0), (7, 8), (7, 8, 0)]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_text_without_repetition_gives_nothing(text: list[int]) -> None:
    assert len(draft(text, DraftShape(8, 4, 2))) == 0


def test_a_long_text_is_neither_scanned_nor_copied_for_a_draft() -> None:
    reads = 0

    class Watched(list[int]):
        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            nonlocal reads
            reads += 1 if isinstance(key, int) else len(range(*key.indices(len(self))))
            return super().__getitem__(key)

    index = NgramIndex()
    index.append(np.random.default_rng(0).integers(0, 40, size=30_000).tolist())
    index._tokens = Watched(index._tokens)
    tree = index.draft(DraftShape(16, 4, 3))
    assert len(tree) > 4
    assert reads <= 200


def test_orders_must_make_sense() -> None:
    with pytest.raises(ValueError, match="orders"):
        NgramIndex(max_order=2, min_order=3)
