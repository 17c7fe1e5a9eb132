"""Drafting from the text itself: what followed the last few tokens the last time they stood there.

The index grows with the text and is never rebuilt: each appended token adds one entry per order, and a draft looks up
as many entries as it has nodes, whatever the length of the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree

DEFAULT_MAX_ORDER = 4
"""Tokens of the longest n-gram that is looked up."""
DEFAULT_MIN_ORDER = 2
"""Tokens of the shortest n-gram that is looked up: a single token says too little about what follows."""

_NONE = -1
"""Index that stands for no earlier place."""


class NgramIndex:
    """The text of one session, and where each of its n-grams stood.

    Args:
        max_order: tokens of the longest n-gram looked up.
        min_order: tokens of the shortest one.
    """

    def __init__(self, max_order: int = DEFAULT_MAX_ORDER, min_order: int = DEFAULT_MIN_ORDER) -> None:
        if not 1 <= min_order <= max_order:
            raise ValueError(f"orders must satisfy 1 <= min <= max, not {min_order} and {max_order}")
        self._orders = [_Order(length) for length in range(max_order, min_order - 1, -1)]
        self._tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, ids: Iterable[int]) -> None:
        """Take in the next tokens of the text."""
        for token in ids:
            for order in self._orders:
                order.note(self._tokens)
            self._tokens.append(int(token))

    def draft(self, shape: DraftShape) -> DraftTree:
        """Continuations of the text as a tree under its last token: longer matches first, then recent ones."""
        paths = _Paths(shape)
        for start in self._matches(limit=shape.max_nodes):
            if paths.full:
                break
            paths.add(self._continuation(start))
        return paths.tree()

    def _matches(self, limit: int) -> Iterator[int]:
        """At most `limit` distinct indices of tokens that followed what the text now ends with."""
        seen: set[int] = set()
        for order in self._orders:
            for start in order.matches(self._tokens):
                if len(seen) >= limit:
                    return
                if start not in seen:
                    seen.add(start)
                    yield start

    def _continuation(self, start: int) -> Iterator[int]:
        """The tokens from `start` on, for ever: past the end of the text it copies itself, as a repetition goes on."""
        period = len(self._tokens) - start
        offset = 0
        while True:
            yield self._tokens[start + offset % period]
            offset += 1


class _Order:
    """Where the n-grams of one length stood, each linked to where it stood before: one dictionary entry per n-gram."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier = array("q")
        """For each index of the text, the index before it that followed the same n-gram, or `_NONE`."""

    def note(self, text: list[int]) -> None:
        """The next token will follow what the text ends with."""
        end = len(text)
        earlier = _NONE
        if end >= self._length:
            ngram = tuple(text[end - self._length :])
            earlier = self._latest.get(ngram, _NONE)
            self._latest[ngram] = end
        self._earlier.append(earlier)

    def matches(self, text: list[int]) -> Iterator[int]:
        """Indices of the tokens that followed what the text ends with, latest first."""
        start = self._latest.get(tuple(text[-self._length :]), _NONE)
        while start != _NONE:
            yield start
            start = self._earlier[start]


class _Paths:
    """Continuations merged where they agree, within a shape. Children stand in the order in which they were added."""

    def __init__(self, shape: DraftShape) -> None:
        self._shape = shape
        self._children: list[dict[int, int]] = [{}]
        """For each vertex, the root first, the vertex that each token leads to."""

    @property
    def full(self) -> bool:
        return len(self._children) > self._shape.max_nodes

    def add(self, tokens: Iterator[int]) -> None:
        vertex = 0
        for _ in range(self._shape.max_depth):
            token = next(tokens)
            children = self._children[vertex]
            if token not in children:
                if self.full or len(children) >= self._shape.branching:
                    return
                children[token] = len(self._children)
                self._children.append({})
            vertex = children[token]

    def tree(self) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        pending = [(child, token, ROOT) for token, child in reversed(self._children[0].items())]
        while pending:
            vertex, token, parent = pending.pop()
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            pending.extend((child, token, node) for token, child in reversed(self._children[vertex].items()))
        return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int32))
