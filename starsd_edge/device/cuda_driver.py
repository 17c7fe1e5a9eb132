"""What the NVIDIA driver of this machine says, asked before any library that takes its presence for granted.

TensorRT's objects exist without a driver, and their first call ends the process. So `libcuda.so.1` is opened and
initialised first, by itself; it needs no package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starsd_edge.errors import EngineError

DRIVER_LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True)
class CudaDevice:
    """One GPU.

    Attributes:
        name: as the driver gives it.
        compute_capability: like "sm87".
        memory_bytes: all of its memory; on boards with unified memory, all that the processor has.
    """

    name: str
    compute_capability: str
    memory_bytes: int


def cuda_devices(load: Callable[[str], Any] = ctypes.CDLL) -> list[CudaDevice]:
    """The GPUs of this machine.

    Args:
        load: opens the driver's library by its name.

    Raises:
        EngineError: no driver, one that does not start, or no GPU.
    """
    try:
        driver = load(DRIVER_LIBRARY)
    except OSError:
        raise EngineError(
            f"there is no NVIDIA driver on this machine ({DRIVER_LIBRARY} cannot be opened): install one, or use a "
            "machine with an NVIDIA GPU"
        ) from None
    _require(driver.cuInit(0), "start")
    count = ctypes.c_int()
    _require(driver.cuDeviceGetCount(ctypes.byref(count)), "count its GPUs")
    if count.value == 0:
        raise EngineError("the NVIDIA driver finds no GPU: check CUDA_VISIBLE_DEVICES")
    return [_device(driver, index) for index in range(count.value)]


def driver_version(load: Callable[[str], Any] = ctypes.CDLL) -> tuple[int, int] | None:
    """Major and minor version of the CUDA that this machine's driver is of; None where it does not say."""
    version = ctypes.c_int()
    try:
        code = load(DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return (version.value // 1000, version.value % 1000 // 10) if code == 0 and version.value else None


def wanted_cuda_python(driver: tuple[int, int] | None) -> str:
    """The versions of cuda-python whose runtime a driver of this CUDA takes, for pip; any where it is None."""
    if driver is None:
        return "'cuda-python>=12.6.1,<14'"
    major, minor = max(driver, (12, 6))
    return f"'cuda-python>={'12.6.1' if major == 12 else f'{major}.0'},<{major}.{minor + 1}'"


def older_cuda_python(driver: tuple[int, int] | None) -> str:
    """How to replace one that is too new. The package that holds the calls is another one from 12.8 on, and stays if
    it is not removed.
    """
    return f"pip uninstall -y cuda-bindings cuda-python, then pip install {wanted_cuda_python(driver)}"


def _device(driver: Any, index: int) -> CudaDevice:
    handle, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    what = f"describe GPU {index}"
    _require(driver.cuDeviceGet(ctypes.byref(handle), index), what)
    _require(driver.cuDeviceGetName(name, _NAME_BYTES, handle), what)
    _require(driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle), what)
    _require(driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle), what)
    _require(driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle), what)
    return CudaDevice(name.value.decode(errors="replace"), f"sm{major.value}{minor.value}", memory.value)


def _require(code: int, what: str) -> None:
    if code != 0:
        raise EngineError(f"the NVIDIA driver cannot {what} (CUDA error {code}): see what `nvidia-smi` says")
