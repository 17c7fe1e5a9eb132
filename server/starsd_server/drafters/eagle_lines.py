"""Several sequences side by side, as a pass of the head takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadEngine, Ids, KvArray

FIRST_CAPACITY = 128
"""Rows that memory is taken for at first."""


class HeadKvRows:
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
        self._ids = np.zeros(0, dtype=np.int32)
        self.rows = 0
        self.capacity = 0
        self.next_position = 0

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """The tokens of the rows that are kept."""
        return self._ids[: self.rows]

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
        kept = self.ids[dropped:]
        self._ids = np.zeros(self.capacity, dtype=np.int32)
        self._ids[: len(kept)] = kept
        self.rows -= dropped

    def append(self, ids: npt.NDArray[np.int64], keys: KvArray, values: KvArray) -> None:
        """Rows that there is room for: [count], and [KV heads, count, D] each."""
        end = self.rows + keys.shape[1]
        self._ids[self.rows : end] = ids
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


MOST_GATHERED = 16384
"""Rows of one gathering: what is beyond goes into another pass."""
_SPARE = 4
"""One part in so many of a gathering is added to it as room."""
_ALIKE_ROWS = 512
"""Lines as long as this or less go together whatever their lengths; longer ones with those within a factor of two."""

Line = TypeVar("Line")


@dataclass(frozen=True)
class RowSlots:
    """Where the rows of a pass stand; see `HeadRows`.

    Attributes:
        slots: int64 [B, R].
        places: int64 [T].
        lines: int64 [T], the line of each row.
        within: int64 [T], its number there.
        counts: int64 [B], rows of each line.
    """

    slots: Ids
    places: Ids
    lines: Ids
    within: Ids
    counts: Ids

    @classmethod
    def of(cls, counts: Sequence[int]) -> RowSlots:
        """For so many rows of each line, one line's after the other's; at least one in all."""
        rows = np.asarray(counts, dtype=np.int64)
        total, widest = int(rows.sum()), int(rows.max())
        starts = np.cumsum(rows) - rows
        spare = np.minimum(np.arange(widest), np.maximum(rows - 1, 0)[:, None])
        lines = np.repeat(np.arange(len(rows)), rows)
        within = np.arange(total) - starts[lines]
        return cls(np.minimum(starts[:, None] + spare, total - 1), lines * widest + within, lines, within, rows)


@dataclass(frozen=True)
class Past:
    """True rows of B lines: [B, KV heads, S, D] each, and int64 [B] how many of the S are each line's."""

    keys: KvArray
    values: KvArray
    lengths: Ids


class PastBatch:
    """Memory in which true rows are brought together, once for a draft.

    It stays for the next one, with some room for the rows that come until then, and never exceeds `MOST_GATHERED` rows,
    or those of one line.
    """

    def __init__(self, engine: HeadEngine) -> None:
        self._engine = engine
        self._keys = self._values = engine.zeros(0)
        self._row = engine.spec.n_kv_heads * engine.spec.head_dim

    @property
    def rows(self) -> int:
        """Rows that memory is held for."""
        return len(self._keys) // self._row

    def gather(self, stores: Sequence[HeadKvRows]) -> Past:
        """The rows of these sequences; valid until the next call."""
        longest = max(store.rows for store in stores)
        spec = self._engine.spec
        shape = (len(stores), spec.n_kv_heads, longest, spec.head_dim)
        numbers = math.prod(shape)
        if numbers > len(self._keys):
            room = self._room(numbers, len(stores))
            self._keys, self._values = self._engine.zeros(room), self._engine.zeros(room)
        keys, values = self._keys[:numbers].reshape(shape), self._values[:numbers].reshape(shape)
        for line, store in enumerate(stores):
            store.copy_to(keys[line], values[line])
            keys[line][:, store.rows :] = 0
            values[line][:, store.rows :] = 0
        return Past(keys, values, np.array([store.rows for store in stores], dtype=np.int64))

    def _room(self, numbers: int, lines: int) -> int:
        """Numbers to take memory for. Lines grow with each round: were it just enough, it would be too little soon."""
        most = self._row * min(MOST_GATHERED, lines * self._engine.spec.max_positions)
        return max(numbers, min(numbers + numbers // _SPARE, most))

    def release(self) -> None:
        """Give the memory back."""
        self._keys = self._values = self._engine.zeros(0)


def alike(lines: Sequence[Line], length: Callable[[Line], int]) -> Iterator[list[Line]]:
    """Groups of lines that waste little on each other, in their order: similar lengths, and not too many rows."""
    classes: dict[int, list[Line]] = {}
    for line in lines:
        classes.setdefault(max(0, (length(line) - 1) // _ALIKE_ROWS).bit_length(), []).append(line)
    for members in classes.values():
        most = max(1, MOST_GATHERED // max(1, *map(length, members), 1))
        for start in range(0, len(members), most):
            yield members[start : start + most]


def own_rows_seen(places: RowSlots) -> npt.NDArray[np.bool_]:
    """bool [B, R, R]: the mask of true rows, each of which sees those before it."""
    widest = places.slots.shape[1]
    return np.tile(np.tri(widest, dtype=np.bool_), (len(places.counts), 1, 1))
