"""What the kernel and a Jetson's own files tell of power, heat and the board. Below another root in the tests."""

from __future__ import annotations

import re
from pathlib import Path

from starsd_edge.doctor.machine import PowerMode

ROOT = Path("/")
_RELEASE = "etc/nv_tegra_release"
_MODEL = "proc/device-tree/model"
_MODE = "var/lib/nvpmodel/status"
_MODES = "etc/nvpmodel.conf"
_GPU_DEVICES = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu")
_FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq"
_THROTTLE_COUNTERS = (
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count",
    "sys/class/hwmon/hwmon*/oc*_event_cnt",  # over-current events of a Jetson
)
_ZONES = "sys/class/thermal/thermal_zone*"
_BELIEVED_C = (-40.0, 150.0)
"""Zones without a sensor give other numbers."""


def jetson_release(root: Path = ROOT) -> str | None:
    """A Jetson's board and release; None on any other machine."""
    release, model = read(root / _RELEASE), read(root / _MODEL)
    if release is None and "jetson" not in (model or "").lower():
        return None
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", release or "")
    parts = [model or "Jetson", f"L4T {found[1]}.{found[2]}" if found else ""]
    return ", ".join(part for part in parts if part)


def nvidia_gpu(root: Path = ROOT) -> str:
    """How an NVIDIA GPU shows itself; "" where none does."""
    present = [device for device in _GPU_DEVICES if (root / device).exists()]
    return f"an NVIDIA GPU (/{present[0]})" if present else ""


def power_mode(root: Path = ROOT) -> PowerMode | None:
    """A Jetson's power mode; None where it is not told."""
    now = re.search(r"pmode:(\d+)", read(root / _MODE) or "")
    if now is None:
        return None
    named = re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", read(root / _MODES) or "")
    names = {int(number): name for number, name in named}
    highest = [number for number, name in names.items() if name.upper().startswith("MAXN")]
    return PowerMode(int(now[1]), names.get(int(now[1]), ""), highest[-1] if highest else None)


def frequency_governor(root: Path = ROOT) -> tuple[str | None, str | None]:
    """Governor and driver of the first core's frequency."""
    return read(root / _FREQUENCY / "scaling_governor"), read(root / _FREQUENCY / "scaling_driver")


def throttle_events(root: Path = ROOT) -> int | None:
    """How often heat or current slowed the machine down since it started; None where nothing counts that."""
    files = [file for pattern in _THROTTLE_COUNTERS for file in sorted(root.glob(pattern))]
    counts = [int(text) for text in map(read, files) if text is not None and text.isdigit()]
    return sum(counts) if counts else None


def hottest_zone(root: Path = ROOT) -> tuple[str, float] | None:
    """Name and degrees Celsius of the hottest zone; None where no zone can be read."""
    zones = []
    for zone in root.glob(_ZONES):
        name, text = read(zone / "type"), read(zone / "temp")
        if name and text and re.fullmatch(r"-?\d+", text):
            zones.append((name, int(text) / 1e3))
    believed = [zone for zone in zones if _BELIEVED_C[0] < zone[1] < _BELIEVED_C[1]]
    return max(believed, key=lambda zone: zone[1], default=None)


def read(path: Path) -> str | None:
    """Text of a small file of the kernel; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \n") or None
    except OSError:
        return None
