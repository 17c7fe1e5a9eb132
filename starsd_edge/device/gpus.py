"""NVIDIA GPUs: as `nvidia-smi` tells, else as the driver itself does."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

from starsd_edge.device.cuda_driver import CudaDevice
from starsd_edge.device.host import Host
from starsd_edge.errors import EngineError

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
