"""What a bench ran on: figures without it say little."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import psutil

from starsd_edge import __version__

_CPUINFO = Path("/proc/cpuinfo")
_NAME_KEYS = ("model name", "Model")  # x86, and boards with an ARM processor


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine(libraries: Iterable[str]) -> dict[str, object]:
    """The machine and the versions of these libraries (by their names on the package index; None where missing)."""
    return {
        "cpu": _cpu_name(_CPUINFO.read_text() if _CPUINFO.exists() else ""),
        "cores": usable_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {"starsd-edge": __version__, **{name: installed_version(name) for name in libraries}},
    }


def installed_version(library: str) -> str | None:
    """The version of a library, by its name on the package index; None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name(cpuinfo: str) -> str:
    fields = (line.partition(":") for line in cpuinfo.splitlines())
    found = {key.strip(): value.strip() for key, _, value in fields}
    return next((found[key] for key in _NAME_KEYS if key in found), platform.processor() or platform.machine())
