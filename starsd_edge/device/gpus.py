"""NVIDIA GPUs: as `nvidia-smi` tells, else as the driver itself does.

TensorRT's objects exist without a driver, and their first call ends the process. So `libcuda.so.1` is opened and
initialised by itself before any library that takes it for granted; that needs no package.
"""

from __future__ import annotations

import csv
import ctypes
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starsd_edge.device.host import Host
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


_FIELDS = (
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.free",
    "temperature.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "power.limit",
    "clocks_throttle_reasons.active",
)
_MIB = 1 << 20
_MHZ = 1_000_000
POWER_LIMIT = "power limit"
# Bits of the reasons (NVML): those that hold a GPU back against its will; idle and set clocks do not.
_REASONS = {0x04: POWER_LIMIT, 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power supply"}
_DEVICES = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu")


@dataclass(frozen=True)
class Gpu:
    """One GPU. "", 0 and None for what is not told.

    Attributes:
        name: of it.
        driver: version.
        compute_capability: like "sm89".
        memory_bytes, free_bytes: its own; 0 where it has none of its own.
        celsius: its temperature.
        hz, most_hz: of its processors, now and at most.
        watts: its power limit.
        held_back: why it is slower than it could be now.
    """

    name: str
    driver: str = ""
    compute_capability: str = ""
    memory_bytes: int = 0
    free_bytes: int = 0
    celsius: float | None = None
    hz: int = 0
    most_hz: int = 0
    watts: float | None = None
    held_back: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """All of them.

    Attributes:
        found: in the driver's order.
        device: a device file by which one shows itself, "" where none does.
        problem: why there are none although one shows itself; "" elsewhere.
    """

    found: tuple[Gpu, ...] = ()
    device: str = ""
    problem: str = ""


def read_gpus(host: Host, devices: Callable[[], list[CudaDevice]]) -> Gpus:
    """What is there.

    Args:
        devices: asks the driver.
    """
    file = next((f"/{path}" for path in _DEVICES if host.exists(path)), "")
    told = _by_tool(host)
    if told:
        return Gpus(tuple(told), file)
    try:
        return Gpus(tuple(Gpu(each.name, "", each.compute_capability, each.memory_bytes) for each in devices()), file)
    except EngineError as error:
        return Gpus((), file, str(error) if file else "")


def _by_tool(host: Host) -> list[Gpu]:
    """Drivers know fields by other names in time, and refuse the query for one that they do not know."""
    for fields in (_FIELDS, _FIELDS[:-1], _FIELDS[:5]):
        text = host.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        rows = [row for row in csv.reader(io.StringIO(text or ""), skipinitialspace=True) if len(row) == len(fields)]
        if rows:
            return [_gpu(dict(zip(fields, row, strict=True))) for row in rows]
    return []


def _gpu(told: dict[str, str]) -> Gpu:
    capability = told["compute_cap"].replace(".", "")
    watts, celsius = _number(told.get("power.limit", "")), _number(told.get("temperature.gpu", ""))
    return Gpu(
        name=told["name"],
        driver=told["driver_version"],
        compute_capability=f"sm{capability}" if capability.isdigit() else "",
        memory_bytes=_MIB * int(_number(told["memory.total"]) or 0),
        free_bytes=_MIB * int(_number(told["memory.free"]) or 0),
        celsius=celsius,
        hz=_MHZ * int(_number(told.get("clocks.sm", "")) or 0),
        most_hz=_MHZ * int(_number(told.get("clocks.max.sm", "")) or 0),
        watts=watts,
        held_back=_reasons(told.get("clocks_throttle_reasons.active", "")),
    )


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _reasons(text: str) -> tuple[str, ...]:
    if not re.fullmatch(r"0x[0-9a-fA-F]+", text):
        return ()
    bits = int(text, 16)
    return tuple(dict.fromkeys(reason for bit, reason in _REASONS.items() if bits & bit))
