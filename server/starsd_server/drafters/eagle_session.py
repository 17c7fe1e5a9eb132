"""One sequence of an EAGLE head: the rows it has taken in, and the drafts that grow from the last of them.

K and V of true rows are computed from true features and stay; those of guesses live behind them for one draft and are
overwritten by the rows that the target sends next. Positions are those of the features: row i stands at i.

Heads are trained on a limited number of positions. RoPE knows only how far apart two rows are, so a sequence that grows
past the limit forgets its oldest rows and goes on: that is the same as beginning again with the newest ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import Floats, HeadEngine, HeadRows, HeadStep
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import SessionRefusedError
from starsd_server.drafters.dynamic_tree import Node, grow_dynamic
from starsd_server.drafters.spine import Candidates, top_candidates

MAX_WIDTH = 10
"""Most nodes expanded on one level, and most children of one node."""
MAX_GUESSES = 256
"""Rows kept free behind the true ones."""
_CHUNK = 256
"""Most true rows of one pass."""
_NOTHING = Candidates(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))


class EagleSession:
    """See the module.

    Args:
        draft_ids: int64 [draft vocabulary], the target's id of each guess.
    """

    def __init__(self, engine: HeadEngine, draft_ids: npt.NDArray[np.int64]) -> None:
        self._draft_ids = draft_ids
        self._cache = _RowCache(engine)
        self._first: Candidates | None = None
        self._last = np.zeros(engine.spec.hidden_size, dtype=np.float32)

    @property
    def rows(self) -> int:
        """True rows that are kept."""
        return self._cache.rows

    @property
    def capacity(self) -> int:
        """Rows that memory is held for."""
        return self._cache.capacity

    def extend(self, ids: npt.NDArray[np.int64], features: Floats) -> None:
        """Take in true rows: int64 [R] and float32 [R, H].

        Raises:
            SessionRefusedError: the head overflows on these features.
        """
        for start in range(0, len(ids), self._cache.most_at_once):
            chunk = slice(start, start + self._cache.most_at_once)
            step = self._cache.add(ids[chunk], features[chunk])
            self._first = self._candidates(step.logits)[0]
            self._last = step.predicted[-1]
            if not len(self._first.tokens):
                raise SessionRefusedError("the head overflows on the target's features: they are not of its model")

    def draft(self, shape: DraftShape) -> DraftTree:
        """The tree under the last row's token; the empty one before there is any row."""
        if self._first is None:
            return DraftTree.empty()
        width = 1 if shape.branching == 1 else min(MAX_WIDTH, max(1, round((2 * shape.max_nodes) ** 0.5)))
        shape = DraftShape(shape.max_nodes, min(shape.max_depth, MAX_GUESSES // width), shape.branching)
        guesses = _Guesses(self._cache, self._last)
        return grow_dynamic(shape, width, self._first, lambda nodes: self._candidates(guesses.expand(nodes)))

    def _candidates(self, logits: Floats) -> list[Candidates]:
        """Below each row; none where the head has overflown, as it may on the way down from its own predictions."""
        return [self._likeliest(row) if np.isfinite(row.max()) else _NOTHING for row in logits]

    def _likeliest(self, logits: Floats) -> Candidates:
        found = top_candidates(logits, MAX_WIDTH)
        return Candidates(self._draft_ids[found.tokens], found.scores)


class _RowCache:
    """K and V, true rows first, guesses behind."""

    def __init__(self, engine: HeadEngine) -> None:
        self._engine = engine
        self._most = engine.spec.max_positions
        self.most_at_once = min(_CHUNK, max(1, self._most // 2))
        self._forgotten = 0
        self._keys = np.zeros((MAX_GUESSES, engine.spec.n_kv_heads, engine.spec.head_dim), dtype=np.float32)
        self._values = np.zeros_like(self._keys)
        self.rows = 0

    @property
    def capacity(self) -> int:
        return len(self._keys)

    def add(self, ids: npt.NDArray[np.int64], features: Floats) -> HeadStep:
        """True rows; the logits of the last one."""
        count = len(ids)
        self._make_room(count)
        step = self._run(ids, features, np.arange(count), 0, np.tri(count, dtype=np.bool_), np.array([count - 1]))
        self.rows += count
        return step

    def guess(
        self, ids: npt.NDArray[np.int64], features: Floats, depth: int, behind: int, seen: npt.NDArray[np.bool_]
    ) -> HeadStep:
        """Rows of guesses, `depth` positions after the last true row's and `behind` other guesses, with all logits.

        Args:
            seen: bool [R, behind + R]: which guesses each of them sees.
        """
        return self._run(ids, features, np.full(len(ids), depth), behind, seen, np.arange(len(ids)))

    def _run(
        self,
        ids: npt.NDArray[np.int64],
        features: Floats,
        offsets: npt.NDArray[np.int64],
        behind: int,
        seen: npt.NDArray[np.bool_],
        logits_rows: npt.NDArray[np.int64],
    ) -> HeadStep:
        start = self.rows + behind
        mask = np.ones((len(ids), start + len(ids)), dtype=np.bool_)
        mask[:, self.rows :] = seen
        positions = offsets + self._forgotten + self.rows
        keys, values = self._keys[:start], self._values[:start]
        step = self._engine.forward(HeadRows(ids, features, positions, keys, values, mask, logits_rows))
        self._keys[start : start + len(ids)] = step.keys
        self._values[start : start + len(ids)] = step.values
        return step

    def _make_room(self, count: int) -> None:
        """For `count` more rows and guesses behind them: by forgetting the older half, or with more memory."""
        if self.rows + count > self._most:
            drop = max(self.rows + count - self._most, self.rows - self._most // 2)
            for buffer in (self._keys, self._values):
                buffer[: self.rows - drop] = buffer[drop : self.rows].copy()
            self.rows -= drop
            self._forgotten += drop
        needed = self.rows + count + MAX_GUESSES
        if needed > self.capacity:
            capacity = max(needed, min(2 * self.capacity, self._most + MAX_GUESSES))
            self._keys, self._values = (_grown(buffer, capacity) for buffer in (self._keys, self._values))


def _grown(buffer: Floats, capacity: int) -> Floats:
    grown = np.zeros((capacity, *buffer.shape[1:]), dtype=np.float32)
    grown[: len(buffer)] = buffer
    return grown


class _Guesses:
    """The rows of one draft."""

    def __init__(self, cache: _RowCache, last: Floats) -> None:
        self._cache = cache
        self._last = last
        self._rows: dict[int, int] = {}
        """Row of each node that was expanded, by its index."""
        self._seen = np.zeros((0, 0), dtype=np.bool_)
        """Which rows each row sees: its ancestors and itself."""
        self._predicted: list[Floats] = []

    def expand(self, nodes: Sequence[Node]) -> Floats:
        """float32 [nodes, draft vocabulary]: logits below the nodes of one level."""
        before, count = len(self._predicted), len(nodes)
        seen = np.eye(before + count, dtype=np.bool_)
        seen[:before, :before] = self._seen
        features = np.tile(self._last, (count, 1))
        for row, node in enumerate(nodes, before):
            self._rows[node.index] = row
            if node.parent in self._rows:
                parent = self._rows[node.parent]
                seen[row] |= seen[parent]
                features[row - before] = self._predicted[parent]
        self._seen = seen
        ids = np.array([node.token for node in nodes], dtype=np.int64)
        step = self._cache.guess(ids, features, nodes[0].level - 1, before, seen[before:])
        self._predicted.extend(step.predicted)
        return step.logits
