"""What a pass takes in and gives out: blocks that host and GPU both see, with a place for each tensor.

A block is one piece of memory on boards where processor and GPU share theirs; elsewhere it is two, and what is written
on one side is copied to the other. Its places never move, so that TensorRT is told their addresses once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_jetson.tensorrt.device import ALIGNMENT, Device, HostMemory


def aligned(size: int) -> int:
    """The next multiple of the alignment that TensorRT asks for."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class SharedBlock:
    """One block.

    Args:
        sizes: bytes of every place, in the order in which they shall lie.
        purpose: for the error where there is no memory.
        apart: two pieces also where one would do: for what the GPU itself reads again, and the host seldom.
    """

    def __init__(self, device: Device, sizes: Mapping[str, int], purpose: str, *, apart: bool = False) -> None:
        self._device, self._purpose = device, purpose
        self._starts: dict[str, int] = {}
        self._size = 0
        for name, size in sizes.items():
            self._starts[name] = self._size
            self._size += aligned(size)
        self._is_one = device.has_unified_memory and not apart
        self._own = None if self._is_one else device.allocate(self._size, purpose)
        if self._own is not None:
            device.clear(self._own)

    @cached_property
    def _host(self) -> HostMemory:
        """The host's side, made when it is first used: of what stays on the GPU there is none."""
        return self._device.allocate_host(self._size, self._purpose, seen=self._is_one)

    @property
    def addresses(self) -> dict[str, int]:
        """Where the GPU finds every place."""
        base = self._host.address if self._own is None else self._own.address
        return {name: (base or 0) + start for name, start in self._starts.items()}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array into a place, on the host's side."""
        start = self._starts[name]
        self._host.bytes[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def upload(self, last: str, size: int) -> None:
        """Let the GPU see everything up to the first `size` bytes of one place, in the order of the stream."""
        if self._own is not None:
            self._device.upload(self._own.address, self._host.pointer, self._starts[last] + size)

    def download(self, name: str, size: int) -> None:
        """Let the host see the first `size` bytes of a place, once the device is synchronised."""
        if self._own is not None:
            start = self._starts[name]
            self._device.download(self._host.pointer + start, self._own.address + start, size)

    def take(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """A copy of what lies in a place on the host's side."""
        start, kind = self._starts[name], np.dtype(dtype)
        size = kind.itemsize * int(np.prod(shape))
        array: npt.NDArray[Any] = self._host.bytes[start : start + size].view(kind).reshape(shape).copy()
        return array
