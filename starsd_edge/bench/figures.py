"""A figure and a report of figures: the one form that every `bench` command writes.

{"figures": [{"name": ..., "value": ..., "unit": ..., "label": ...}, ...],
 "spread": {name: {"low": ..., "high": ..., "samples": ...}, ...},
 "machine": {...}, "settings": {...}}
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from starsd_edge import __version__
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.errors import UsageError

CPU = "CPU"
GPU = "GPU"
TIMING_BACKEND = "timing backend"
"""Label of figures whose times come from a model of the device, not from a device."""

_LABELS = {"cpu": CPU, "cuda": GPU, "jetson": GPU}


@dataclass(frozen=True)
class Spread:
    """The samples behind a figure: the least, the greatest, and how many."""

    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: lower case with underscores; a unit in it is that of the value.
        value: a finite number.
        unit: as written after a number; "" for a plain count or ratio.
        label: what it was measured on: `CPU`, `GPU` or `TIMING_BACKEND`.
        spread: spread of the samples whose median is `value`; None for a figure of another kind.

    Raises:
        ValueError: the value is no finite number.
    """

    name: str
    value: float
    unit: str
    label: str
    spread: Spread | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"the figure {self.name} is {self.value}")

    @classmethod
    def median(cls, name: str, samples: Sequence[float], unit: str, label: str) -> Figure:
        """The median of at least one sample, with its spread."""
        spread = Spread(min(samples), max(samples), len(samples))
        return cls(name, statistics.median(samples), unit, label, spread)


@dataclass(frozen=True)
class BenchReport:
    """What one run of a bench gave.

    Attributes:
        figures: in the order in which they are shown; no name twice.
        machine: what it ran on.
        settings: how it was run, so that it can be repeated.
    """

    figures: Sequence[Figure]
    machine: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Figure:
        """The figure of this name; KeyError if there is none."""
        return self._by_name[name]

    def get(self, name: str) -> Figure | None:
        """The figure of this name, or None."""
        return self._by_name.get(name)

    @property
    def _by_name(self) -> dict[str, Figure]:
        return {figure.name: figure for figure in self.figures}

    def to_json(self) -> bytes:
        """The report as indented JSON, with the fields that this module's docstring shows and a newline at its end."""
        content = {
            "figures": [
                {"name": figure.name, "value": _rounded(figure.value), "unit": figure.unit, "label": figure.label}
                for figure in self.figures
            ],
            "spread": {
                figure.name: {
                    "low": _rounded(figure.spread.low),
                    "high": _rounded(figure.spread.high),
                    "samples": figure.spread.samples,
                }
                for figure in self.figures
                if figure.spread is not None
            },
            "machine": dict(self.machine),
            "settings": dict(self.settings),
        }
        return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def label_of(device: str) -> str:
    """The label of what is measured on a device ("cpu", "cuda", "jetson")."""
    return _LABELS[device]


def percentile(samples: Sequence[float], share: float) -> float:
    """The least sample that at least this share of the samples does not exceed (nearest rank)."""
    ranked = sorted(samples)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def check_report_path(path: Path) -> None:
    """Whether a report can be written there; asked before the measuring, which takes minutes.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory: give --json the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}: make it, or give --json another place")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: give --json another place")


def write_report(path: Path, report: BenchReport) -> None:
    """Write the report whole or not at all."""
    write_whole(path, report.to_json())


def _rounded(value: float) -> float:
    """Six digits: more than any of these measurements holds."""
    return float(f"{value:.6g}")


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
