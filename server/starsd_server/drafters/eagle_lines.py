"""K, V and tokens of the true rows of sequences, and several sequences side by side, as a pass of an EAGLE head takes
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadEngine, Ids, KvArray

FIRST_CAPACITY = 128
"""Rows that a sequence takes memory for with its first row; doubled as rows come."""


class HeadKvRows:
    """K, V and tokens of the true rows of one sequence.

    Heads are trained on a limited number of positions. RoPE depends only on the distance of two rows. So a sequence
    that grows past the limit forgets its oldest rows and goes on: that is the same as beginning again with the newest
    ones.

    Memory: none before the first row, then doubled as rows come, up to the head's limit. A hub's sessions together
    never hold more than `--max-sessions` times that limit.

    Attributes:
        rows: number of rows that are kept.
        capacity: rows that memory is held for.
        next_position: position of the row that comes next.
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
        """Make room for `count` more rows, at most half of the head's limit, by forgetting the older half or by
        growing.
        """
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
        """Append rows for which `make_room` has made room.

        Args:
            ids: int64 [count], tokens of the rows.
            keys, values: [KV heads, count, D] each.
        """
        end = self.rows + keys.shape[1]
        self._ids[self.rows : end] = ids
        self._keys[:, self.rows : end] = keys
        self._values[:, self.rows : end] = values
        self.next_position += end - self.rows
        self.rows = end

    def copy_to(self, keys: KvArray, values: KvArray, first: int = 0) -> None:
        """Copy the rows from number `first` on to the beginning of these arrays, [KV heads, as many rows or more, D]
        each.
        """
        count = self.rows - first
        keys[:, :count] = self._keys[:, first : self.rows]
        values[:, :count] = self._values[:, first : self.rows]

    def _room(self, capacity: int) -> KvArray:
        return self._engine.zeros(self._engine.spec.n_kv_heads, capacity, self._engine.spec.head_dim)


MOST_GATHERED = 16384
"""Most rows, padding included, that are gathered for one pass; further lines go into another pass."""
_SPARE = 4
"""Divisor of the spare room: a batch gets a quarter more memory than it needs, so that growing lines soon fit
again.
"""
_ALIKE_ROWS = 512
"""Rows up to which lines share a pass whatever their lengths. Longer lines share one only with lines within a factor of
two in length, so that little time goes into padding.
"""

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
        """The slots for these numbers of rows, one line's rows after the other's; at least one row in all."""
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
    """Memory in which the true rows of several sequences are gathered, once for each draft.

    The memory is kept for the next draft, with some room for the rows that come until then. It never exceeds
    `MOST_GATHERED` rows, or the rows of one line where these are more.
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
        """Numbers (array elements) to take memory for: more than needed now, since lines grow with each round."""
        most = self._row * min(MOST_GATHERED, lines * self._engine.spec.max_positions)
        return max(numbers, min(numbers + numbers // _SPARE, most))

    def release(self) -> None:
        """Free the memory."""
        self._keys = self._values = self._engine.zeros(0)


def alike(lines: Sequence[Line], length: Callable[[Line], int]) -> Iterator[list[Line]]:
    """Groups of lines that need little padding together, in their order: similar lengths, and at most `MOST_GATHERED`
    rows.
    """
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
