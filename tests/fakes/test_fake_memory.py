"""The fake device's memory: it does what a right program asks of it, and tells each kind of wrong one."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.support.fake_device import DeviceTraits
from tests.support.fake_faults import UndefinedBehaviourError
from tests.support.fake_memory import ALIGNMENT
from tests.support.fake_rig import Cuda

FOUR = np.arange(4, dtype=np.float16)


@pytest.fixture
def gpu() -> Cuda:
    return Cuda()


def test_what_goes_up_comes_down_and_nothing_is_refused(gpu: Cuda) -> None:
    address, host = gpu.put(FOUR), gpu.pinned(8)
    gpu.ok(gpu.down(host.address, address, 8))
    gpu.wait()
    assert host.half.tolist() == [0, 1, 2, 3]
    assert gpu.notes == []


def test_fresh_memory_is_poison_on_both_sides(gpu: Cuda) -> None:
    host = gpu.pinned(8)
    assert np.isnan(host.half).all()
    host.half[:] = 0
    gpu.ok(gpu.down(host.address, gpu.memory(8), 8))
    gpu.wait()
    assert np.isnan(host.half).all()


def test_addresses_are_aligned_to_no_more_than_they_have_to_be(gpu: Cuda) -> None:
    found = [gpu.memory(8), gpu.memory(1000), gpu.pinned(8).address, gpu.pinned(3000).address]
    found.append(gpu.ok(gpu.cuda.cudaMallocManaged(8, gpu.cuda.cudaMemAttachGlobal)))
    found.append(gpu.ok(gpu.cuda.cudaMallocHost(8)))
    assert {address % (2 * ALIGNMENT) for address in found} == {ALIGNMENT}


def test_nothing_is_copied_before_somebody_waits(gpu: Cuda) -> None:
    address, host = gpu.put(FOUR), gpu.pinned(8)
    host.half[:] = 7
    gpu.ok(gpu.down(host.address, address, 8))
    assert host.half.tolist() == [7, 7, 7, 7]
    gpu.wait()
    assert host.half.tolist() == [0, 1, 2, 3]


def test_an_input_overwritten_too_early_arrives_overwritten(gpu: Cuda) -> None:
    address, host = gpu.memory(8), gpu.pinned(8)
    host.half[:] = FOUR
    gpu.ok(gpu.up(address, host.address, 8))
    host.half[:2] = 9
    assert gpu.get(address, 4) == [9, 9, 2, 3]


@pytest.mark.parametrize(
    ("size", "offset"),
    [(10, 0), (8, 2), (2, 8)],
)
def test_bytes_beyond_an_allocation_are_refused(gpu: Cuda, size: int, offset: int) -> None:
    address, host, large = gpu.put(FOUR), gpu.pinned(8), gpu.pinned(64)
    assert gpu.code(gpu.down(large.address, address + offset, size)) == "cudaErrorInvalidValue"
    assert gpu.code(gpu.up(address + offset, large.address, size)) == "cudaErrorInvalidValue"
    assert gpu.code(gpu.down(host.address + offset, gpu.memory(64), size)) == "cudaErrorInvalidValue"
    assert gpu.code(gpu.cuda.cudaMemsetAsync(address + offset, 0, size, gpu.stream)) == "cudaErrorInvalidValue"
    assert len(gpu.notes) >= 4


def test_freed_memory_is_refused_at_once_or_when_the_work_is_done(gpu: Cuda) -> None:
    address, host = gpu.put(FOUR), gpu.pinned(8)
    gpu.ok(gpu.down(host.address, address, 8))
    gpu.ok(gpu.cuda.cudaFree(address))
    assert gpu.code(gpu.down(host.address, address, 8)) == "cudaErrorInvalidValue"
    with pytest.raises(UndefinedBehaviourError, match="freed before the work was done"):
        gpu.wait()


def test_an_allocation_is_given_back_once_and_as_it_was_taken(gpu: Cuda) -> None:
    device, host = gpu.memory(512), gpu.pinned(512).address
    cuda, refused = gpu.cuda, "cudaErrorInvalidValue"
    assert gpu.code(cuda.cudaFree(device + ALIGNMENT)) == refused
    assert gpu.code(cuda.cudaFreeHost(device)) == refused
    assert gpu.code(cuda.cudaFree(host)) == refused
    gpu.ok(cuda.cudaFree(device))
    gpu.ok(cuda.cudaFreeHost(host))
    assert gpu.code(cuda.cudaFree(device)) == refused
    assert gpu.code(cuda.cudaFreeHost(host)) == refused
    gpu.ok(cuda.cudaFree(0))


def test_a_copy_goes_the_way_that_is_named(gpu: Cuda) -> None:
    device, other, host = gpu.put(FOUR), gpu.put(FOUR), gpu.pinned(8).address
    right = {"HostToDevice": (device, host), "DeviceToHost": (host, device), "DeviceToDevice": (device, other)}
    for kind in right:
        for direction, (target, source) in right.items():
            result = gpu.cuda.cudaMemcpyAsync(target, source, 8, gpu.kinds[f"cudaMemcpy{kind}"], gpu.stream)
            assert (result[0] == gpu.cuda.cudaError_t.cudaSuccess) == (kind == direction), (kind, direction)


def test_host_memory_that_is_not_pinned_is_refused(gpu: Cuda) -> None:
    array = np.zeros(4, np.float16)
    assert gpu.code(gpu.up(gpu.memory(8), array.ctypes.data, 8)) == "cudaErrorInvalidValue"
    assert "pinned memory is needed" in gpu.notes[-1]


def test_the_default_stream_is_refused(gpu: Cuda) -> None:
    with pytest.raises(UndefinedBehaviourError, match="default stream"):
        gpu.up(gpu.memory(8), gpu.pinned(8).address, 8, stream=0)
    with pytest.raises(UndefinedBehaviourError, match="default stream"):
        gpu.cuda.cudaMemsetAsync(gpu.memory(8), 0, 8, 0)


def test_numpy_writing_beyond_pinned_memory_is_found_at_the_next_wait(gpu: Cuda) -> None:
    address = gpu.pinned(8).address
    beyond = np.ctypeslib.as_array((ctypes.c_uint8 * 9).from_address(address))
    gpu.wait()
    beyond[8] = 1
    with pytest.raises(UndefinedBehaviourError, match="beside a block of 8 bytes"):
        gpu.wait()


def test_pinned_memory_written_after_it_was_freed_is_found(gpu: Cuda) -> None:
    host = gpu.pinned(8)
    gpu.ok(gpu.cuda.cudaFreeHost(host.address))
    assert np.isnan(host.half).all()
    gpu.wait()
    host.half[:] = 1
    with pytest.raises(UndefinedBehaviourError, match="in a freed block"):
        gpu.wait()


def test_copies_that_overlap_are_refused(gpu: Cuda) -> None:
    address, kind = gpu.put(np.arange(16, dtype=np.float16)), gpu.kinds.cudaMemcpyDeviceToDevice
    gpu.ok(gpu.cuda.cudaMemcpyAsync(address, address + 8, 8, kind, gpu.stream))
    assert gpu.get(address, 8) == [4, 5, 6, 7, 4, 5, 6, 7]
    with pytest.raises(UndefinedBehaviourError, match="overlap"):
        gpu.cuda.cudaMemcpyAsync(address, address + 6, 8, kind, gpu.stream)
    gpu.ok(gpu.cuda.cudaMemcpy2DAsync(address, 8, address + 4, 16, 4, 2, kind, gpu.stream))
    with pytest.raises(UndefinedBehaviourError, match="overlap"):
        gpu.cuda.cudaMemcpy2DAsync(address, 8, address + 8, 16, 4, 2, kind, gpu.stream)


def test_rows_at_distances_are_copied_and_nothing_between_them(gpu: Cuda) -> None:
    source, target = gpu.put(np.arange(12, dtype=np.float16)), gpu.memory(16)
    kind = gpu.kinds.cudaMemcpyDeviceToDevice
    gpu.ok(gpu.cuda.cudaMemcpy2DAsync(target, 6, source + 2, 8, 4, 2, kind, gpu.stream))
    found = gpu.get(target, 8)
    assert found[:2] + found[3:5] == [1, 2, 5, 6]
    assert np.isnan([found[2], *found[5:]]).all()
    for pitch in (3, 1 << 31):
        result = gpu.cuda.cudaMemcpy2DAsync(target, pitch, source, 8, 4, 2, kind, gpu.stream)
        assert gpu.code(result) == "cudaErrorInvalidPitchValue"
    beyond = gpu.cuda.cudaMemcpy2DAsync(target, 6, source, 8, 4, 4, kind, gpu.stream)
    assert gpu.code(beyond) == "cudaErrorInvalidValue"


def test_a_full_device_says_so_and_has_room_again_later() -> None:
    gpu = Cuda(DeviceTraits(memory_bytes=1000))
    first = gpu.memory(600)
    assert gpu.code(gpu.cuda.cudaMalloc(600)) == "cudaErrorMemoryAllocation"
    assert gpu.code(gpu.cuda.cudaMallocManaged(600, 1)) == "cudaErrorMemoryAllocation"
    gpu.pinned(600)
    gpu.ok(gpu.cuda.cudaFree(first))
    gpu.memory(600)


def test_a_fill_is_work_like_any_other(gpu: Cuda) -> None:
    address = gpu.put(FOUR)
    gpu.ok(gpu.cuda.cudaMemsetAsync(address + 2, 0, 4, gpu.stream))
    assert gpu.device.memory.block_at(address).content.view(np.float16).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert gpu.get(address, 4) == [0, 0, 0, 3]
    assert gpu.code(gpu.cuda.cudaMemsetAsync(address, 256, 8, gpu.stream)) == "cudaErrorInvalidValue"


def test_mapped_memory_has_an_address_on_each_side(gpu: Cuda) -> None:
    host = gpu.pinned(8, gpu.cuda.cudaHostAllocMapped)
    seen = gpu.ok(gpu.cuda.cudaHostGetDevicePointer(host.address, 0))
    host.half[:] = FOUR
    assert seen != host.address
    assert gpu.device.memory.is_device_address(seen)
    assert not gpu.device.memory.is_device_address(host.address)
    target, kind = gpu.memory(8), gpu.kinds.cudaMemcpyDeviceToDevice
    gpu.ok(gpu.cuda.cudaMemcpyAsync(target, seen, 8, kind, gpu.stream))
    assert gpu.get(target, 4) == [0, 1, 2, 3]
    plain = gpu.pinned(8).address
    assert gpu.code(gpu.cuda.cudaHostGetDevicePointer(plain, 0)) == "cudaErrorInvalidValue"
    gpu.ok(gpu.cuda.cudaFreeHost(host.address))
    assert gpu.code(gpu.cuda.cudaMemcpyAsync(target, seen, 8, kind, gpu.stream)) == "cudaErrorInvalidValue"


def test_managed_memory_serves_both_sides_at_one_address(gpu: Cuda) -> None:
    address = gpu.ok(gpu.cuda.cudaMallocManaged(8, gpu.cuda.cudaMemAttachGlobal))
    np.ctypeslib.as_array((ctypes.c_uint8 * 8).from_address(address)).view(np.float16)[:] = FOUR
    assert gpu.get(address, 4) == [0, 1, 2, 3]
    assert gpu.code(gpu.cuda.cudaMallocManaged(8, 0)) == "cudaErrorInvalidValue"


def test_nothing_is_copied_filled_or_allocated_in_other_than_whole_numbers(gpu: Cuda) -> None:
    cuda, host = gpu.cuda, gpu.pinned(8)
    assert gpu.code(cuda.cudaMalloc(0)) == "cudaErrorInvalidValue"
    assert gpu.code(cuda.cudaHostAlloc(8, 8)) == "cudaErrorInvalidValue"
    device = gpu.memory(8)
    with pytest.raises(OverflowError):
        cuda.cudaMalloc(-1)
    with pytest.raises(OverflowError):
        gpu.up(device, host.address, -1)
    with pytest.raises(TypeError):
        cuda.cudaMalloc(8.0)  # type: ignore[arg-type]
    gpu.ok(gpu.up(device, host.address, 0))
    gpu.ok(cuda.cudaMemsetAsync(device, 0, 0, gpu.stream))
    assert gpu.device.leaks()[-1] == "1 streams were not destroyed"  # and nothing was queued


def test_what_is_not_given_back_or_not_waited_for_is_listed(gpu: Cuda) -> None:
    device, host = gpu.memory(8), gpu.pinned(16)
    gpu.ok(gpu.up(device, host.address, 8))
    assert gpu.device.leaks() == [
        "8 bytes of device memory were not freed",
        "16 bytes of host memory were not freed",
        "1 streams were not destroyed",
        "nobody waited for a copy of 8 bytes",
    ]
    gpu.wait()
    gpu.ok(gpu.cuda.cudaFree(device))
    gpu.ok(gpu.cuda.cudaFreeHost(host.address))
    gpu.ok(gpu.cuda.cudaStreamDestroy(gpu.stream))
    assert gpu.device.leaks() == []
