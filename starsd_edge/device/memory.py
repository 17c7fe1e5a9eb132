"""Memory of the machine, as the kernel counts it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starsd_edge.device.host import Host

_KIB = 1024


@dataclass(frozen=True)
class Memory:
    """In bytes.

    Attributes:
        total, free: of all, and what can be had without swapping.
        swap: in all.
    """

    total: int
    free: int
    swap: int


def read_memory(host: Host) -> Memory | None:
    """None where the kernel does not tell."""
    text = host.read("proc/meminfo") or ""
    found = {name: _KIB * int(count) for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "MemTotal" not in found:
        return None
    return Memory(found["MemTotal"], found.get("MemAvailable", found.get("MemFree", 0)), found.get("SwapTotal", 0))
