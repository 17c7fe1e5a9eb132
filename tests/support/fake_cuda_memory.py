"""The part of the fake of `cuda.bindings.runtime` that is about memory."""

# ruff: noqa: N802, N803  (the names are the library's)

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.fake_cuda_part import CAPTURE_FORBIDS, NO_DRIVER, NO_SUCH_HANDLE, OK, Code, CudaPart
from tests.support.fake_cuda_types import cudaError_t, cudaMemcpyKind
from tests.support.fake_memory import Kind, Span
from tests.support.fake_streams import Stream, Task

_SIDES = {
    cudaMemcpyKind.cudaMemcpyHostToHost: ("host", "host"),
    cudaMemcpyKind.cudaMemcpyHostToDevice: ("device", "host"),
    cudaMemcpyKind.cudaMemcpyDeviceToHost: ("host", "device"),
    cudaMemcpyKind.cudaMemcpyDeviceToDevice: ("device", "device"),
}
"""Where each kind of copy goes to and comes from."""
_HOST_FLAGS, _MAPPED = 7, 2
_MANAGED_FLAGS = (1, 2)
_LARGEST_PITCH = (1 << 31) - 1
Pointer = tuple[cudaError_t, int | None]


@dataclass(frozen=True)
class _Rows:
    """Some bytes at regular distances."""

    address: int
    pitch: int
    width: int
    height: int

    @property
    def count(self) -> int:
        """Bytes from the first to the last."""
        return (self.height - 1) * self.pitch + self.width


class CudaMemory(CudaPart):
    """Allocations, copies and fills."""

    def cudaMalloc(self, size: int) -> Pointer:
        """Memory of the device, full of poison."""
        return self._allocate("device", size, mapped=False)

    def cudaFree(self, devPtr: int) -> Code:
        """Give memory of the device back; nothing waits for what is queued and uses it."""
        return self._free(("device", "managed"), devPtr)

    def cudaHostAlloc(self, size: int, flags: int) -> Pointer:
        """Pinned memory of the host, which the device sees elsewhere if it is mapped."""
        if flags & ~_HOST_FLAGS:
            return *self._refuse(f"no pinned memory has the flags {flags}"), None
        return self._allocate("host", size, mapped=bool(flags & _MAPPED))

    def cudaMallocHost(self, size: int) -> Pointer:
        """Pinned memory of the host."""
        return self._allocate("host", size, mapped=False)

    def cudaFreeHost(self, ptr: int) -> Code:
        """Give pinned memory back."""
        return self._free(("host",), ptr)

    def cudaMallocManaged(self, size: int, flags: int) -> Pointer:
        """Memory that both sides have at one address."""
        if flags not in _MANAGED_FLAGS:
            return *self._refuse(f"no managed memory has the flags {flags}"), None
        return self._allocate("managed", size, mapped=False)

    def cudaHostGetDevicePointer(self, pHost: int, flags: int) -> Pointer:
        """Where the device sees mapped memory. It is another address than the host's, as it is on some boards."""
        address = operator.index(pHost)
        block = self._device.memory.block_at(address)
        if flags != 0 or block is None or block.freed or not block.device_base or not block.base <= address:
            return *self._refuse(f"no mapped memory of the host at {address:#x}"), None
        return OK, block.device_base + address - block.base

    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: Any) -> Code:
        """Fill memory of the device with one byte."""
        queue = self._stream(stream)
        if queue is None:
            return self._refuse("a fill on a stream that is not there", NO_SUCH_HANDLE)
        if count == 0:
            return (OK,)
        where = self._span("device", _Rows(operator.index(devPtr), count, count, 1), "a fill")
        if where is None or not 0 <= value <= np.iinfo(np.uint8).max:
            return self._refuse(f"a fill with {value}")
        memory = self._device.memory
        self._submit(queue, "a fill", lambda: memory.write(where, np.full(count, value, np.uint8)))
        return (OK,)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: Any) -> Code:
        """Copy bytes; what the source holds when the copy is run is what arrives."""
        to, of = (_Rows(operator.index(address), count, count, 1) for address in (dst, src))
        return self._copy(to, of, kind, stream)

    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: cudaMemcpyKind, stream: Any
    ) -> Code:
        """Copy bytes at regular distances."""
        if width > min(dpitch, spitch) or max(dpitch, spitch) > _LARGEST_PITCH:
            return self._refuse(
                f"rows of {width} bytes every {dpitch} and {spitch}", cudaError_t.cudaErrorInvalidPitchValue
            )
        to = _Rows(operator.index(dst), dpitch, width, height)
        return self._copy(to, _Rows(operator.index(src), spitch, width, height), kind, stream)

    def _copy(self, to: _Rows, of: _Rows, kind: cudaMemcpyKind, stream: Any) -> Code:
        queue = self._stream(stream)
        if queue is None:
            return self._refuse("a copy on a stream that is not there", NO_SUCH_HANDLE)
        if min(to.width, to.height) < 0:
            raise OverflowError("can't convert negative value to size_t")
        if to.width == 0 or to.height == 0:
            return (OK,)
        sides = _SIDES[kind]
        target, source = self._span(sides[0], to, "a copy's target"), self._span(sides[1], of, "a copy's source")
        if target is None or source is None:
            return (cudaError_t.cudaErrorInvalidValue,)
        pairs = list(zip(_cut(target, to), _cut(source, of), strict=True))
        if any(there.overlaps(other) for there, _ in pairs for _, other in pairs):
            raise self._device.faults.undefined("a copy whose source and target overlap")
        memory = self._device.memory

        def run() -> None:
            read = [(there, *memory.read(here, whole=False)) for there, here in pairs]
            for there, content, known in read:
                memory.write(there, content, known)

        self._submit(queue, f"a copy of {to.width * to.height} bytes", run)
        return (OK,)

    def _span(self, side: str, rows: _Rows, what: str) -> Span | None:
        """The bytes from the first row to the last, None (and noted) where this side has none there."""
        memory = self._device.memory
        block = memory.block_at(rows.address)
        reachable = memory.is_device_address if side == "device" else memory.is_pinned_address
        if block is not None and block.kind != "managed" and not reachable(rows.address):
            self._device.faults.note(f"{what}: {rows.address:#x} is not the {side}'s")
            return None
        found = memory.span(rows.address, rows.count, what)
        if isinstance(found, str):
            self._device.faults.note(found if block or side == "device" else f"{found}: pinned memory is needed")
            return None
        return found

    def _submit(self, stream: Stream, what: str, run: Any) -> None:
        if stream.handle == 0:
            raise self._device.faults.undefined(f"{what} on the default stream, which no other stream waits for")
        self._device.scheduler.submit(stream, Task(what, run))

    def _allocate(self, kind: Kind, size: int, *, mapped: bool) -> Pointer:
        if not self._device.traits.has_driver:
            return NO_DRIVER, None
        if self._device.spoil_captures("an allocation"):
            return CAPTURE_FORBIDS, None
        if operator.index(size) < 0:
            raise OverflowError("can't convert negative value to size_t")
        if size == 0:
            return *self._refuse("an allocation of nothing"), None
        block = self._device.memory.allocate(kind, size, mapped=mapped)
        return (OK, block.base) if block else (cudaError_t.cudaErrorMemoryAllocation, None)

    def _free(self, kinds: tuple[Kind, ...], pointer: int) -> Code:
        address = operator.index(pointer)
        if self._device.spoil_captures("freeing memory"):
            return (CAPTURE_FORBIDS,)
        if address == 0:
            return (OK,)
        if self._device.memory.free(kinds, address):
            return (OK,)
        return self._refuse(f"{address:#x} was freed, where no such memory begins")


def _cut(whole: Span, rows: _Rows) -> list[Span]:
    return [Span(whole.block, whole.offset + row * rows.pitch, rows.width, whole.what) for row in range(rows.height)]
