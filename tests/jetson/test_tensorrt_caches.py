"""What a commit moves in the memory of the GPU, against the same rows in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.errors import EngineError, GpuMemoryError
from starsd_edge.runtime.cuda import ALIGNMENT, Device
from starsd_edge.runtime.cuda_caches import AppendCaches, Caches, InplaceCaches, KvShape, runs
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice

Half = npt.NDArray[np.float16]
COMMITTED, NEW = 7, 9
EVEN, PADDED, ONE_HEAD = KvShape(2, 2, 64), KvShape(3, 3, 20), KvShape(2, 1, 16)
ROWS = ([0], [0, 1, 2], [0, 2], [1, 2, 3], [0, 3, 4, 8], [4, 5, 6, 7, 8], [2, 4, 6])


class Gpu:
    """A fake device, and its memory as arrays."""

    def __init__(self) -> None:
        self.fake = FakeDevice()
        self.device = Device(FakeCudart(self.fake))

    def write(self, address: int, array: Half) -> None:
        memory = self.fake.memory
        span: Any = memory.span(address, array.nbytes, "what a pass wrote")
        memory.write(span, array.reshape(-1).view(np.uint8))

    def read(self, address: int, shape: tuple[int, ...]) -> Half:
        memory = self.fake.memory
        span: Any = memory.span(address, 2 * int(np.prod(shape)), "what a pass reads")
        content, _ = memory.read(span, whole=True)
        return content.view(np.float16).reshape(shape)

    def commit(self, caches: Caches, rows: list[int]) -> None:
        caches.commit(COMMITTED, rows)
        self.device.synchronize()


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def rows_of(seed: int, *shape: int) -> Half:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


@pytest.mark.parametrize("shape", [EVEN, PADDED, ONE_HEAD])
@pytest.mark.parametrize("rows", [*ROWS, [3, 0], [8, 1, 2]])
def test_append_puts_rows_behind_the_committed_ones(gpu: Gpu, shape: KvShape, rows: list[int]) -> None:
    caches = AppendCaches(gpu.device, shape, capacity=20, new_rows=NEW)
    caches.clear()
    gpu.device.synchronize()
    row = (shape.kv_heads, shape.head_dim)
    expected = {}
    for seed, (past, new) in enumerate(zip(shape.names("past"), shape.names("new"), strict=True)):
        old, fresh = rows_of(seed, COMMITTED, *row), rows_of(seed + 100, NEW, *row)
        gpu.write(caches.addresses[past], old)
        gpu.write(caches.addresses[new], fresh)
        expected[past] = np.concatenate([old, fresh[rows], np.zeros((20 - COMMITTED - len(rows), *row), np.float16)])
    gpu.commit(caches, rows)
    for name, wanted in expected.items():
        assert np.array_equal(gpu.read(caches.addresses[name], (20, *row)), wanted), name


def test_append_grows_with_what_is_committed_and_no_further_than_its_capacity(gpu: Gpu) -> None:
    shape, row = PADDED, (PADDED.kv_heads, PADDED.head_dim)
    caches = AppendCaches(gpu.device, shape, capacity=30, new_rows=NEW, first_rows=4)
    caches.clear()
    gpu.device.synchronize()
    held = {name: np.zeros((0, *row), np.float16) for name in shape.names("past")}
    used, length = [gpu.fake.memory.used], 0
    for turn, rows in enumerate(([0, 1, 2], [0, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8], [4, 7], [*range(9)], [1, 2, 3, 4, 5])):
        for seed, (past, new) in enumerate(zip(shape.names("past"), shape.names("new"), strict=True)):
            fresh = rows_of(100 * turn + seed, NEW, *row)
            gpu.write(caches.addresses[new], fresh)
            held[past] = np.concatenate([held[past], fresh[rows]])
        caches.commit(length, rows)
        gpu.device.synchronize()
        length += len(rows)
        used.append(gpu.fake.memory.used)
        for name, wanted in held.items():
            assert np.array_equal(gpu.read(caches.addresses[name], (length, *row)), wanted), (turn, name)
    assert length == caches.capacity
    assert used[0] == used[1] < used[2] < used[3] == used[4] < used[5] == used[6]
    whole = AppendCaches(gpu.device, shape, capacity=30, new_rows=NEW)
    assert gpu.fake.memory.used == 2 * used[6]
    del whole


def test_append_that_finds_no_memory_to_grow_keeps_what_it_has(gpu: Gpu) -> None:
    caches = AppendCaches(gpu.device, EVEN, capacity=30, new_rows=NEW, first_rows=4)
    caches.clear()
    caches.commit(0, [0, 1, 2])
    addresses, gpu.fake.memory.size = caches.addresses, gpu.fake.memory.used
    with pytest.raises(GpuMemoryError, match="left for the KV cache of 8 tokens"):
        caches.commit(3, [0, 1])
    caches.commit(3, [0])
    gpu.device.synchronize()
    assert caches.addresses is addresses


@pytest.mark.parametrize("shape", [EVEN, PADDED, ONE_HEAD])
@pytest.mark.parametrize("rows", ROWS)
def test_inplace_moves_what_is_not_where_it_belongs(gpu: Gpu, shape: KvShape, rows: list[int]) -> None:
    caches = InplaceCaches(gpu.device, shape, rows=21, max_tree=4)
    caches.clear()
    gpu.device.synchronize()
    whole = (1, shape.kv_heads, 21, shape.head_dim)
    expected = {}
    for seed, name in enumerate(shape.names("past")):
        content = rows_of(seed, *whole)
        gpu.write(caches.addresses[name], content)
        kept = content[:, :, [COMMITTED + row for row in rows]]
        expected[name] = np.concatenate([content[:, :, :COMMITTED], kept], axis=2)
    gpu.commit(caches, rows)
    for name, wanted in expected.items():
        found = gpu.read(caches.addresses[name], whole)[:, :, : COMMITTED + len(rows)]
        assert np.array_equal(found, wanted), name
    assert gpu.fake.faults.notes == []


def test_inplace_refuses_an_order_in_which_a_row_would_be_lost(gpu: Gpu) -> None:
    caches = InplaceCaches(gpu.device, EVEN, rows=21, max_tree=4)
    for rows in ([1, 0], [2, 2]):
        with pytest.raises(EngineError, match="ascending order"):
            caches.commit(0, rows)


@pytest.mark.parametrize("shape", [EVEN, PADDED, ONE_HEAD])
def test_every_tensor_is_aligned_and_in_and_out_are_one_place_in_place(gpu: Gpu, shape: KvShape) -> None:
    append, inplace = AppendCaches(gpu.device, shape, 20, NEW), InplaceCaches(gpu.device, shape, 21, 4)
    for caches in (append, inplace):
        assert not any(address % ALIGNMENT for address in caches.addresses.values())
    assert len(set(append.addresses.values())) == 4 * shape.layers
    for past, present in zip(shape.names("past"), shape.names("present"), strict=True):
        assert inplace.addresses[past] == inplace.addresses[present]
    assert (append.capacity, inplace.capacity) == (20, 17)


def test_rows_that_follow_each_other_are_one_copy() -> None:
    assert [*runs([0, 1, 2, 5, 7, 8])] == [(0, 0, 3), (3, 5, 1), (4, 7, 2)]
    assert [*runs([4])] == [(0, 4, 1)]
    assert [*runs([])] == []
