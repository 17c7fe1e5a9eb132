"""Draft trees: draft tokens below the root, in depth-first preorder, likeliest child first.

The root is the last emitted token, which is not yet in the target's KV; it is *not* a node of the tree but row 0 of the
verify pass, so node i is row i + 1 there. A chain is a tree with one branch. Preorder with the likeliest child first
puts the likeliest path at rows 1..d: committing it keeps a prefix of the rows, and its bits equal those of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

ROOT = -1
"""Parent of the nodes that hang directly below the root."""


@dataclass(frozen=True)
class DraftShape:
    """How large a tree may be.

    Attributes:
        max_nodes: nodes below the root; a verify pass over the tree has one row more.
        max_depth: levels below the root.
        branching: most children of one node; 1 asks for a chain.
    """

    max_nodes: int
    max_depth: int
    branching: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether not one node fits."""
        return self.max_nodes <= 0 or self.max_depth <= 0

    def clamp(self, max_nodes: int, max_depth: int) -> DraftShape:
        """The same shape within other limits, none of them below zero."""
        return DraftShape(
            max(0, min(self.max_nodes, max_nodes)), max(0, min(self.max_depth, max_depth)), self.branching
        )

    def within(self, other: DraftShape) -> DraftShape:
        """The same shape, no larger in anything than another one."""
        branching = max(1, min(self.branching, other.branching))
        return DraftShape(self.max_nodes, self.max_depth, branching).clamp(other.max_nodes, other.max_depth)


@dataclass(frozen=True, eq=False)
class DraftTree:
    """An immutable draft tree.

    Attributes:
        tokens: int64 [n], the draft token of each node.
        parents: int32 [n], index of each node's parent, `ROOT` for those below the root; `parents[i] < i`.

    Raises:
        ValueError: the arrays do not form a depth-first preorder, or two children of one node carry the same token.
    """

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", np.asarray(self.tokens, dtype=np.int64))
        object.__setattr__(self, "parents", np.asarray(self.parents, dtype=np.int32))
        if self.tokens.ndim != 1 or self.tokens.shape != self.parents.shape:
            raise ValueError(
                f"a tree needs as many parents as tokens, not {self.parents.shape} and {self.tokens.shape}"
            )
        seen: set[tuple[int, int]] = set()
        path: list[int] = []
        for node, parent in enumerate(self.parents.tolist()):
            while path and path[-1] != parent:
                path.pop()
            if not path and parent != ROOT:
                raise ValueError(f"node {node} does not follow its parent {parent} in depth-first preorder")
            path.append(node)
            child = (parent, int(self.tokens[node]))
            if child in seen:
                raise ValueError(f"token {child[1]} stands twice below node {parent}")
            seen.add(child)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """A tree with one branch."""
        return cls(np.asarray(tokens, dtype=np.int64), np.arange(-1, len(tokens) - 1, dtype=np.int32))

    @classmethod
    def empty(cls) -> DraftTree:
        """The tree without draft tokens."""
        return cls.chain([])

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DraftTree):
            return NotImplemented
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(self.parents, other.parents)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def depths(self) -> npt.NDArray[np.int32]:
        """int32 [n]: level of each node, 1 for the children of the root."""
        depths = np.zeros(len(self), dtype=np.int32)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = 1 if parent == ROOT else depths[parent] + 1
        return depths

    @property
    def depth(self) -> int:
        """Number of levels; 0 for the empty tree."""
        return int(self.depths.max(initial=0))

    @cached_property
    def children(self) -> dict[int, dict[int, int]]:
        """For each parent (`ROOT` included) the node that each child token leads to, in order of falling likelihood."""
        children: dict[int, dict[int, int]] = {}
        for node, (parent, token) in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)):
            children.setdefault(parent, {})[token] = node
        return children

    def verify_mask(self) -> npt.NDArray[np.bool_]:
        """bool [n + 1, n + 1]: row r of the verify pass sees r itself and its ancestors (row 0 is the root)."""
        rows = len(self) + 1
        mask = np.eye(rows, dtype=np.bool_)
        mask[:, 0] = True
        for node, parent in enumerate(self.parents.tolist()):
            mask[node + 1] |= mask[parent + 1]
        return mask

    def verify_tokens(self, root: int) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: the tokens of the verify pass, root first."""
        return np.concatenate(([root], self.tokens)).astype(np.int64)

    def verify_positions(self, base_len: int) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: absolute positions in the verify pass, the root at `base_len`."""
        return np.concatenate(([0], self.depths)).astype(np.int64) + base_len

    def walk(self, tokens: Sequence[int]) -> int | None:
        """The node that these tokens lead to from the root, `ROOT` for none at all, None when they leave the tree."""
        node = ROOT
        for token in tokens:
            child = self.children.get(node, {}).get(int(token))
            if child is None:
                return None
            node = child
        return node

    def below(self, node: int) -> DraftTree:
        """The subtree whose root is `node` (which is not part of it), renumbered. `ROOT` gives the tree itself."""
        if node == ROOT:
            return self
        depths = self.depths
        end = node + 1
        while end < len(self) and depths[end] > depths[node]:
            end += 1
        return DraftTree(self.tokens[node + 1 : end], self.parents[node + 1 : end] - (node + 1))

    def rebase(self, emitted: Sequence[int]) -> DraftTree:
        """What is left of a late tree once `emitted` followed its root: the subtree under them, or the empty tree."""
        node = self.walk(emitted)
        return DraftTree.empty() if node is None else self.below(node)

    def clip(self, max_nodes: int, max_depth: int, branching: int | None = None) -> DraftTree:
        """The tree without the nodes beyond these limits: of each node the likeliest children (None keeps all), of
        those the first shallow nodes in preorder, parents included.
        """
        within = self.depths <= max_depth
        if branching is not None:
            within &= self._likeliest(branching)
        return self.only(np.flatnonzero(within)[: max(0, max_nodes)])

    def of_vocabulary(self, size: int) -> DraftTree:
        """The tree without tokens that are not below `size`, and without what hangs from them."""
        known = self.tokens < size
        if known.all():
            return self
        for node, parent in enumerate(self.parents.tolist()):
            known[node] &= parent == ROOT or known[parent]
        return self.only(np.flatnonzero(known))

    def only(self, nodes: npt.NDArray[np.intp]) -> DraftTree:
        """The tree of these nodes (ascending, parents included), renumbered."""
        if len(nodes) == len(self):
            return self
        renumber = np.full(len(self) + 1, ROOT, dtype=np.int32)
        renumber[nodes] = np.arange(len(nodes))
        return DraftTree(self.tokens[nodes], renumber[self.parents[nodes]])

    def _likeliest(self, branching: int) -> npt.NDArray[np.bool_]:
        """bool [n]: nodes that are, like all their ancestors, among the first `branching` children of their parents."""
        likeliest = np.zeros(len(self), dtype=np.bool_)
        for parent, children in self.children.items():
            if parent == ROOT or likeliest[parent]:
                likeliest[list(children.values())[:branching]] = True
        return likeliest
