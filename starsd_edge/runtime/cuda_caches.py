"""The KV of one sequence on the GPU, by strategy: where each tensor lies, and what a commit moves.

All caches of a sequence lie in one piece of memory, each as far from the next, so that a commit moves the rows of all
layers with one call. The memory is cleared when a sequence is opened: rows out of sight weigh nothing, but nothing
times NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda import Device, aligned

Half = npt.NDArray[np.float16]
FIRST_ROWS = 512
"""Committed rows for which a growing sequence takes memory at first: a short chat. From there it doubles."""


@dataclass(frozen=True)
class KvShape:
    """Layers, heads of K and V, their width, and bytes of a number (float16 has 2)."""

    layers: int
    kv_heads: int
    head_dim: int
    itemsize: int = 2

    @property
    def row_bytes(self) -> int:
        """Of one token's K (or V) of one layer."""
        return self.kv_heads * self.head_dim * self.itemsize

    def names(self, kind: str) -> list[str]:
        """Of the tensors of a kind, like "past", in the order in which they lie."""
        return [f"{kind}_{which}_{layer}" for which in "kv" for layer in range(self.layers)]


AnyCaches = TypeVar("AnyCaches", bound="Caches")


class Caches(Protocol):
    """KV of one sequence."""

    @property
    def capacity(self) -> int:
        """Committed rows that fit."""

    @property
    def addresses(self) -> dict[str, int]:
        """Where the graph's KV inputs and outputs lie."""

    def clear(self) -> None:
        """Make all of it zero."""

    def commit(self, length: int, rows: ListLike[int]) -> None:
        """Append these rows of the last pass to `length` committed ones, in the order of the stream."""

    def copy(self: AnyCaches, source: AnyCaches, length: int) -> None:
        """Take the first `length` committed rows of caches of the same kind, in the order of the stream."""

    def new_rows(self, which: str, length: int, count: int) -> list[Half]:
        """What the last pass gave on `length` committed rows, for whoever checks it: float16 [count, H_kv, D] by layer.

        Args:
            which: "k" or "v".
        """


class AppendCaches:
    """Committed rows per layer [capacity, H_kv, D], bound at their base; new rows [T, H_kv, D] apart from them.

    A commit copies what is kept from there: the place where it belongs is in general not aligned, so TensorRT cannot
    write there.
    """

    def __init__(
        self, device: Device, shape: KvShape, capacity: int, new_rows: int, first_rows: int | None = None
    ) -> None:
        """Args:
        capacity: most committed rows.
        new_rows: most rows of one pass.
        first_rows: committed rows for which there is memory at first; it grows with them. None takes all at once.

        Raises:
            GpuMemoryError: there is no memory.
        """
        self.capacity = capacity
        self._device, self._shape = device, shape
        self._new_pitch = aligned(new_rows * shape.row_bytes)
        self._count = 2 * shape.layers
        self._take(min(capacity, first_rows or capacity))

    def _take(self, rows: int) -> None:
        """Take memory for so many committed rows, in the place of what was taken before."""
        shape, past_pitch = self._shape, aligned(rows * self._shape.row_bytes)
        size = self._count * (past_pitch + self._new_pitch)
        self._memory = self._device.allocate(size, f"the KV cache of {rows} tokens")
        self._rows, self._past_pitch = rows, past_pitch
        self._past = self._memory.address
        self._new = self._past + self._count * past_pitch
        past = {name: self._past + i * past_pitch for i, name in enumerate(shape.names("past"))}
        new = {name: self._new + i * self._new_pitch for i, name in enumerate(shape.names("new"))}
        self.addresses = past | new

    def _grow(self, length: int, needed: int) -> None:
        """Move `length` committed rows, and those of the last pass, to memory for `needed` committed rows or more."""
        held, past, past_pitch, new = self._memory, self._past, self._past_pitch, self._new
        self._take(min(self.capacity, max(needed, 2 * self._rows)))
        self.clear()
        if length:
            width = length * self._shape.row_bytes
            self._device.copy_rows(self._past, self._past_pitch, past, past_pitch, width, self._count)
        self._device.copy_rows(self._new, self._new_pitch, new, self._new_pitch, self._new_pitch, self._count)
        del held  # only now: it is given back once the stream has copied from it

    def clear(self) -> None:
        """See `Caches.clear`."""
        self._device.clear(self._memory)

    def commit(self, length: int, rows: ListLike[int]) -> None:
        """See `Caches.commit`.

        Raises:
            GpuMemoryError: there is none for more rows; then nothing has changed.
        """
        if length + len(rows) > self._rows:
            self._grow(length, length + len(rows))
        size = self._shape.row_bytes
        for place, first, count in runs(rows):
            target, source = self._past + (length + place) * size, self._new + first * size
            self._device.copy_rows(target, self._past_pitch, source, self._new_pitch, count * size, self._count)

    def copy(self, source: AppendCaches, length: int) -> None:
        """See `Caches.copy`.

        Raises:
            GpuMemoryError: there is none for so many rows.
        """
        if length > self._rows:
            self._grow(0, length)
        if length:
            width = length * self._shape.row_bytes
            self._device.copy_rows(self._past, self._past_pitch, source._past, source._past_pitch, width, self._count)

    def new_rows(self, which: str, length: int, count: int) -> list[Half]:
        """See `Caches.new_rows`."""
        places = [self.addresses[f"new_{which}_{layer}"] for layer in range(self._shape.layers)]
        found = _read(self._device, places, count * self._shape.row_bytes)
        return list(found.reshape(-1, count, self._shape.kv_heads, self._shape.head_dim))


class InplaceCaches:
    """Caches [1, H_kv, C, D] that a pass writes its rows into, behind the committed ones: `past_*` and `present_*` are
    one place. A commit that keeps the first rows moves nothing.
    """

    def __init__(self, device: Device, shape: KvShape, rows: int, max_tree: int) -> None:
        """Args:
        rows: C.
        max_tree: rows that a verify pass may need behind the committed ones.
        """
        self.capacity = rows - max_tree
        self._device, self._shape = device, shape
        self._head = rows * shape.head_dim * shape.itemsize
        layer = shape.kv_heads * self._head
        pitch = aligned(layer)
        self._memory = device.allocate(2 * shape.layers * pitch, f"the KV cache of {rows} rows")
        # Heads stand as far from each other across layers as within one where no layer ends in padding.
        is_even = pitch == layer
        self._heads = shape.kv_heads * (2 * shape.layers if is_even else 1)
        places = [self._memory.address + i * pitch for i in range(2 * shape.layers)]
        self._bases = places[:1] if is_even else places
        past, present = (dict(zip(shape.names(kind), places, strict=True)) for kind in ("past", "present"))
        self.addresses = past | present

    def clear(self) -> None:
        """See `Caches.clear`."""
        self._device.clear(self._memory)

    def commit(self, length: int, rows: ListLike[int]) -> None:
        """See `Caches.commit`.

        Raises:
            EngineError: rows that do not ascend, as those of a path do: one would be overwritten before it is moved.
        """
        if any(later <= earlier for earlier, later in pairwise(rows)):
            raise EngineError(f"rows are kept in ascending order, not {list(rows)}")
        size = self._shape.head_dim * self._shape.itemsize
        for place, first, count in _moves(rows):
            target, source = (length + place) * size, (length + first) * size
            for base in self._bases:
                self._device.copy_rows(base + target, self._head, base + source, self._head, count * size, self._heads)

    def copy(self, source: InplaceCaches, length: int) -> None:
        """See `Caches.copy`."""
        width = length * self._shape.head_dim * self._shape.itemsize
        for base, other in zip(self._bases if length else (), source._bases, strict=False):
            self._device.copy_rows(base, self._head, other, self._head, width, self._heads)

    def new_rows(self, which: str, length: int, count: int) -> list[Half]:
        """See `Caches.new_rows`."""
        shape, row = self._shape, self._shape.head_dim * self._shape.itemsize
        bases = [self.addresses[f"past_{which}_{layer}"] + length * row for layer in range(shape.layers)]
        places = [base + head * self._head for base in bases for head in range(shape.kv_heads)]
        found = _read(self._device, places, count * row).reshape(-1, shape.kv_heads, count, shape.head_dim)
        return list(found.swapaxes(1, 2))


def _read(device: Device, places: ListLike[int], size: int) -> Half:
    """So many bytes from each place, one behind the other, when the stream has come so far."""
    host = device.allocate_host(len(places) * size, "a look at the KV", seen=False)
    for index, place in enumerate(places):
        device.download(host.pointer + index * size, place, size)
    device.synchronize()
    found: Half = host.bytes.view(np.float16).copy()
    return found


def runs(rows: ListLike[int]) -> Iterator[tuple[int, int, int]]:
    """Rows that follow each other: the index of the first among `rows`, its number, and how many they are."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index] != rows[index - 1] + 1:
            yield start, rows[start], index - start
            start = index


def _moves(rows: ListLike[int]) -> Iterator[tuple[int, int, int]]:
    """Runs whose rows are not where they belong, in pieces that do not overlap with their new place."""
    for place, first, count in runs(rows):
        step = first - place
        for done in range(0, count if step else 0, step or 1):
            yield place + done, first + done, min(step, count - done)
