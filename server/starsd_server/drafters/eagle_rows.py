"""K and V of the true rows of one sequence.

Heads are trained on a limited number of positions. RoPE knows only how far apart two rows are, so a sequence that grows
past the limit forgets its oldest rows and goes on: that is the same as beginning again with the newest ones.

Memory: none before the first row, then doubled as rows come, up to the head's limit. A hub's sessions together never
hold more than `--max-sessions` times that limit.
"""

from __future__ import annotations

from starsd_edge.heads.engine import HeadEngine, KvArray

FIRST_CAPACITY = 128
"""Rows that memory is taken for at first."""


class RowStore:
    """See the module.

    Attributes:
        rows: that are kept.
        capacity: rows that memory is held for.
        next_position: of the row that comes next.
    """

    def __init__(self, engine: HeadEngine) -> None:
        self._engine = engine
        self._most = engine.spec.max_positions
        self._keys = self._values = self._room(0)
        self.rows = 0
        self.capacity = 0
        self.next_position = 0

    def make_room(self, count: int) -> None:
        """For `count` more rows, at most half of the head's limit: by forgetting the older half, or by growing."""
        dropped = 0
        if self.rows + count > self._most:
            dropped = max(self.rows + count - self._most, self.rows - self._most // 2)
        needed = self.rows - dropped + count
        if not dropped and needed <= self.capacity:
            return
        if needed > self.capacity:
            self.capacity = min(max(needed, 2 * self.capacity, FIRST_CAPACITY), self._most)
        keys, values = self._room(self.capacity), self._room(self.capacity)
        self.copy_to(keys, values, dropped)
        self._keys, self._values = keys, values
        self.rows -= dropped

    def append(self, keys: KvArray, values: KvArray) -> None:
        """Rows that there is room for: [KV heads, count, D] each."""
        end = self.rows + keys.shape[1]
        self._keys[:, self.rows : end] = keys
        self._values[:, self.rows : end] = values
        self.next_position += end - self.rows
        self.rows = end

    def copy_to(self, keys: KvArray, values: KvArray, first: int = 0) -> None:
        """The rows from the `first` on, to the beginning of [KV heads, more rows, D]."""
        count = self.rows - first
        keys[:, :count] = self._keys[:, first : self.rows]
        values[:, :count] = self._values[:, first : self.rows]

    def _room(self, capacity: int) -> KvArray:
        return self._engine.zeros(self._engine.spec.n_kv_heads, capacity, self._engine.spec.head_dim)
