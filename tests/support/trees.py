"""Draft trees for tests: random ones, and trees from the paths they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from starsd_edge.speculation.tree import DraftShape, DraftTree

Path = tuple[int, ...]


def paths_of(tree: DraftTree) -> list[Path]:
    """The tokens from the root to each node, in node order."""
    paths: list[Path] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append(((*paths[parent],) if parent >= 0 else ()) + (token,))
    return paths


def is_chain(tree: DraftTree) -> bool:
    """Whether every node hangs from the one before it."""
    return bool(np.array_equal(tree.parents, np.arange(-1, len(tree) - 1)))


def tree_of(paths: Iterable[Sequence[int]]) -> DraftTree:
    """The tree that holds these paths and their beginnings, children in the order in which they first appear."""
    ordered: list[Path] = []

    def insert(known: dict[int, dict], path: Sequence[int]) -> None:  # type: ignore[type-arg]
        if path:
            insert(known.setdefault(path[0], {}), path[1:])

    def collect(known: dict[int, dict], path: Path) -> None:  # type: ignore[type-arg]
        for token, below in known.items():
            ordered.append((*path, token))
            collect(below, (*path, token))

    trie: dict[int, dict] = {}  # type: ignore[type-arg]
    for path in paths:
        insert(trie, path)
    collect(trie, ())
    index = {path: node for node, path in enumerate(ordered)}
    tokens = np.array([path[-1] for path in ordered], dtype=np.int64)
    parents = np.array([index.get(path[:-1], -1) for path in ordered], dtype=np.int32)
    return DraftTree(tokens, parents)


def random_tree(rng: np.random.Generator, shape: DraftShape, vocab_size: int) -> DraftTree:
    """Random tokens in a random form that fits the shape."""
    paths = [
        rng.integers(0, vocab_size, size=rng.integers(1, shape.max_depth + 1)).tolist()
        for _ in range(shape.branching)
        if shape.max_depth > 0
    ]
    return tree_of(paths).clip(shape.max_nodes, shape.max_depth)


def trees(vocab_size: int = 4, max_depth: int = 5) -> st.SearchStrategy[DraftTree]:
    """Any tree over a small vocabulary: small, so that paths share their beginnings."""
    token = st.integers(0, vocab_size - 1)
    return st.lists(st.lists(token, max_size=max_depth), max_size=8).map(tree_of)
