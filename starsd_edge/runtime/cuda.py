"""CUDA as the engines use it: memory and one stream of one GPU, by `cuda.bindings.runtime` of the package
`cuda-python`.

Every call gives its status first; here each is looked at. All work goes to one stream of its own, in order, and nothing
is read on the host before `synchronize`.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.device.gpus import older_cuda_python
from starsd_edge.errors import EngineError, GpuMemoryError, UsageError, install_extra

CUDA_MODULE = "cuda.bindings.runtime"
ALIGNMENT = 256
"""Bytes to which every address that TensorRT is given is aligned."""
_INDEX = 0
"""The first of the GPUs that CUDA_VISIBLE_DEVICES leaves."""
log = logging.getLogger(__name__)


def import_cuda(wish: str, extra: str, load: Callable[[str], Any] = importlib.import_module) -> Any:
    """The module of CUDA calls.

    Args:
        wish: what needs it, for the error.
        extra: of this distribution, that brings it.
        load: imports a module by its name.

    Raises:
        UsageError: it is not installed, or broken.
    """
    try:
        return load(CUDA_MODULE)
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = "is not installed" if missing else f"cannot be loaded ({' '.join(str(error).split())[:200]})"
        raise UsageError(f"{wish} needs the Python package cuda-python, which {why}: {install_extra(extra)}") from None


def aligned(size: int) -> int:
    """The next multiple of the alignment that TensorRT asks for."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Device:
    """The first GPU; use it from one thread at a time.

    Args:
        cuda: the module `cuda.bindings.runtime`.

    Raises:
        EngineError: CUDA does not start.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._kinds = cuda.cudaMemcpyKind
        self._start()
        self.has_unified_memory = bool(self._attribute("cudaDevAttrIntegrated")) and bool(
            self._attribute("cudaDevAttrCanMapHostMemory")
        )
        """Whether processor and GPU share their memory, as on every Jetson."""
        self._stream = self._call("make a stream", cuda.cudaStreamCreateWithFlags, cuda.cudaStreamNonBlocking)
        weakref.finalize(self, cuda.cudaStreamDestroy, self._stream).atexit = False
        self.stream_handle = int(self._stream)
        """The stream, for TensorRT."""

    def allocate(self, size: int, purpose: str) -> GpuMemory:
        """So many bytes of the GPU's memory, freed with the object.

        Args:
            purpose: for the error, like "the KV cache".

        Raises:
            GpuMemoryError: there is not so much.
        """
        address = self._allocated(size, purpose, self._cuda.cudaMalloc(size))
        return GpuMemory(self, address, size, self._cuda.cudaFree)

    def allocate_host(self, size: int, purpose: str, *, seen: bool) -> HostMemory:
        """So many bytes of the host's memory that stay where they are.

        Args:
            seen: by the GPU too.

        Raises:
            GpuMemoryError: there is not so much.
        """
        flags = self._cuda.cudaHostAllocMapped if seen else self._cuda.cudaHostAllocDefault
        pointer = self._allocated(size, purpose, self._cuda.cudaHostAlloc(size, flags))
        address = None
        if seen:
            address = int(self._call("map host memory", self._cuda.cudaHostGetDevicePointer, pointer, 0))
        return HostMemory(self, pointer, size, address, self._cuda.cudaFreeHost)

    def clear(self, memory: GpuMemory) -> None:
        """Fill with zeros, in the order of the stream."""
        self._call("clear memory", self._cuda.cudaMemsetAsync, memory.address, 0, memory.size, self._stream)

    def upload(self, address: int, pointer: int, size: int) -> None:
        """From pinned host memory to the GPU, in the order of the stream."""
        kind = self._kinds.cudaMemcpyHostToDevice
        self._call("copy to the GPU", self._cuda.cudaMemcpyAsync, address, pointer, size, kind, self._stream)

    def download(self, pointer: int, address: int, size: int) -> None:
        """From the GPU to pinned host memory, in the order of the stream."""
        kind = self._kinds.cudaMemcpyDeviceToHost
        self._call("copy from the GPU", self._cuda.cudaMemcpyAsync, pointer, address, size, kind, self._stream)

    def copy_rows(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, count: int) -> None:
        """`count` times `width` bytes within the GPU, each a pitch behind the one before; in the order of the stream.

        Source and target must not overlap.
        """
        copy, kind = self._cuda.cudaMemcpy2DAsync, self._kinds.cudaMemcpyDeviceToDevice
        self._call("copy KV", copy, target, target_pitch, source, source_pitch, width, count, kind, self._stream)

    def synchronize(self) -> None:
        """Wait for all that the stream was given."""
        self._call("finish its work", self._cuda.cudaStreamSynchronize, self._stream)

    def begin_capture(self) -> None:
        """Record what the stream is given from here on, instead of doing it."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("begin a graph", self._cuda.cudaStreamBeginCapture, self._stream, mode)

    def end_capture(self) -> Launchable:
        """What was recorded, ready to be launched.

        Raises:
            EngineError: nothing was recorded, or what cannot be.
        """
        graph = self._call("end a graph", self._cuda.cudaStreamEndCapture, self._stream)
        try:
            launchable = self._call("prepare a graph", self._cuda.cudaGraphInstantiate, graph, 0)
        finally:
            self._call("drop a graph", self._cuda.cudaGraphDestroy, graph)
        return Launchable(self, launchable, self._cuda.cudaGraphExecDestroy)

    def launch(self, recorded: Launchable) -> None:
        """Do what was recorded, in the order of the stream."""
        self._call("launch a graph", self._cuda.cudaGraphLaunch, recorded.handle, self._stream)

    def release(self, release: Any, handle: Any) -> None:
        """Give something back once the stream has no more use for it. Called where nobody can take an error."""
        for status, *_ in (self._cuda.cudaStreamSynchronize(self._stream), release(handle)):
            if status != self._cuda.cudaError_t.cudaSuccess:
                log.warning("CUDA gives back a resource with an error: %s", self._reason(status))

    def _start(self) -> None:
        (status,) = self._cuda.cudaSetDevice(_INDEX)
        if status == self._cuda.cudaError_t.cudaErrorInsufficientDriver:
            raise EngineError(self._too_new() or "this machine has no NVIDIA driver that starts: see `nvidia-smi`")
        self._require("use the GPU", status)

    def _too_new(self) -> str:
        """The line for a runtime in the package that is newer than the driver, "" where it is not. Within a major
        version such a runtime works in part, so what fails may come late.
        """
        driver, runtime = (
            self._version(self._cuda.cudaDriverGetVersion),
            self._version(self._cuda.cudaRuntimeGetVersion),
        )
        if runtime <= driver:
            return ""
        of_driver = f", which is of CUDA {driver[0]}.{driver[1]}" if any(driver) else ""
        return (
            f"the installed cuda-python is made for a newer CUDA ({runtime[0]}.{runtime[1]}) than this machine's "
            f"NVIDIA driver{of_driver}: {older_cuda_python(driver if any(driver) else None)}, or install a newer driver"
        )

    def _version(self, ask: Any) -> tuple[int, int]:
        """Major and minor; zeros where there is no driver."""
        status, number = ask()
        number = int(number or 0) if status == self._cuda.cudaError_t.cudaSuccess else 0
        return number // 1000, number % 1000 // 10

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._cuda.cudaDeviceAttr, name)
        return int(self._call("describe itself", self._cuda.cudaDeviceGetAttribute, attribute, _INDEX))

    def _allocated(self, size: int, purpose: str, result: tuple[Any, ...]) -> int:
        status = result[0]
        if status == self._cuda.cudaError_t.cudaErrorMemoryAllocation:
            raise GpuMemoryError(
                f"the GPU has no {size / 1e6:,.1f} MB left for {purpose}: close other programs, or give a smaller "
                "--context"
            )
        self._require(f"give memory for {purpose}", status)
        address = int(result[1])
        if address % ALIGNMENT:
            raise EngineError(f"CUDA gives memory at an address that TensorRT does not take ({address:#x})")
        return address

    def _call(self, what: str, function: Any, *arguments: Any) -> Any:
        """The value of a call, None where it gives only its status."""
        status, *values = function(*arguments)
        self._require(what, status)
        return values[0] if values else None

    def _require(self, what: str, status: Any) -> None:
        if status != self._cuda.cudaError_t.cudaSuccess:
            too_new = self._too_new()
            raise EngineError(f"CUDA cannot {what}: {self._reason(status)}{too_new and f'; {too_new}'}")

    def _reason(self, status: Any) -> str:
        _, text = self._cuda.cudaGetErrorString(status)
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


class _Held:
    """Something that CUDA takes back when nobody holds this any more."""

    def __init__(self, device: Device, handle: Any, release: Any) -> None:
        # Not at the end of the process, which gives everything back.
        weakref.finalize(self, device.release, release, handle).atexit = False


class GpuMemory(_Held):
    """Of the GPU.

    Attributes:
        address: of its first byte.
        size: bytes.
    """

    def __init__(self, device: Device, address: int, size: int, release: Any) -> None:
        super().__init__(device, address, release)
        self.address, self.size = address, size


class HostMemory(_Held):
    """Of the host, pinned.

    Attributes:
        bytes: uint8 [size]; not to be used longer than this object.
        pointer: of its first byte.
        address: the same place as the GPU sees it; None where it does not.
    """

    def __init__(self, device: Device, pointer: int, size: int, address: int | None, release: Any) -> None:
        super().__init__(device, pointer, release)
        self.pointer, self.address = pointer, address
        view = (ctypes.c_uint8 * size).from_address(pointer)
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(view)


class Launchable(_Held):
    """A recorded piece of work.

    Attributes:
        handle: CUDA's own.
    """

    def __init__(self, device: Device, handle: Any, release: Any) -> None:
        super().__init__(device, handle, release)
        self.handle = handle
