"""The power mode of a Jetson, the governor of its cores, the clocks, heat and throttling.

jtop's service knows what files do not show. A process of its own asks it (`python -m starsd_edge.device.power`), so
that a service that hangs or a version of another form costs its facts and nothing else.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from starsd_edge.device.host import Host

JTOP_SOCKET = "run/jtop.sock"
_KILO = 1000
_ASK_JTOP = (sys.executable, "-m", __name__)


class JtopFacts(msgspec.Struct, frozen=True):
    """None and 0 for what is not told."""

    mode_id: int | None = None
    mode_name: str = ""
    emc_hz: int = 0
    emc_most_hz: int = 0


def read_jtop(host: Host) -> JtopFacts | None:
    """Its facts; None where no service runs or its Python module is not installed."""
    if not host.exists(JTOP_SOCKET):
        return None
    try:
        return msgspec.json.decode(host.run(_ASK_JTOP) or "", type=JtopFacts)
    except msgspec.DecodeError:
        return None


def ask(load: Callable[[str], Any] = importlib.import_module) -> JtopFacts:
    """Connect to the service and read what it has now.

    Raises:
        Exception: whatever the module raises where it cannot be used.
    """
    with load("jtop").jtop() as jetson:
        jetson.ok()
        mode, memory = jetson.nvpmodel, jetson.memory
        emc = memory.get("EMC", {}) if memory else {}
        return JtopFacts(
            mode_id=None if mode is None else int(mode.id),
            mode_name="" if mode is None else str(mode.name),
            emc_hz=_KILO * int(emc.get("cur", 0)),
            emc_most_hz=_KILO * int(emc.get("max", 0)),
        )


_MODE = "var/lib/nvpmodel/status"
_MODES = "etc/nvpmodel.conf"
_POLICIES = "sys/devices/system/cpu/cpufreq/policy*"
_GPU_CLOCKS = re.compile(r"(\.gpu|\.ga10b|\.gv11b|^gpu-gpc-\d+)$")
"""Of the devices with a frequency: Orin's GPU under JetPack 6 and 5, Xavier's, Thor's (and Orin's from JetPack 7)."""
_EMC = "sys/kernel/debug/bpmp/debug/clk/emc"


@dataclass(frozen=True)
class PowerMode:
    """A Jetson's power mode.

    Attributes:
        number: of the mode.
        name: of it; "" where unknown.
        highest: number of the mode named MAXN; None where there is none.
    """

    number: int
    name: str
    highest: int | None

    def __str__(self) -> str:
        return self.name or str(self.number)


@dataclass(frozen=True)
class Clock:
    """The clock of a part.

    Attributes:
        name: "CPU", "GPU" or "memory".
        hz: now.
        least_hz, most_hz: between which it is held now; 0 where unknown.
        built_hz: the most that the part can do; 0 where unknown.
    """

    name: str
    hz: int
    least_hz: int = 0
    most_hz: int = 0
    built_hz: int = 0

    @property
    def follows_load(self) -> bool:
        """Whether it is free to be lower than it is allowed to be."""
        return 0 < self.least_hz < self.most_hz


def read_power_mode(host: Host, jtop: JtopFacts | None = None) -> PowerMode | None:
    """From nvpmodel's own files, else from the tool, else from jtop's service; None where none of them tells."""
    names = _modes(host)
    highest = [number for number, name in names.items() if name.upper().startswith("MAXN")]
    most = highest[-1] if highest else None
    now = re.search(r"pmode:(\d+)", host.read(_MODE) or "")
    if now is not None:
        return PowerMode(int(now[1]), names.get(int(now[1]), ""), most)
    told = re.search(r"NV Power Mode: (\S+)\s+(\d+)", host.run(["nvpmodel", "-q"]) or "") if names else None
    if told is not None:
        return PowerMode(int(told[2]), told[1], most)
    if jtop is not None and jtop.mode_id is not None:
        return PowerMode(jtop.mode_id, jtop.mode_name, most)
    return None


def read_governor(host: Host) -> tuple[str | None, str | None]:
    """Governor and driver of the first core's frequency."""
    core = "sys/devices/system/cpu/cpu0/cpufreq"
    return host.read(f"{core}/scaling_governor"), host.read(f"{core}/scaling_driver")


def read_clocks(host: Host, jtop: JtopFacts | None = None) -> tuple[Clock, ...]:
    """Those that can be read: the fastest cores, the GPU, the memory."""
    clocks = [_cpu(host), _gpu(host), _memory(host, jtop)]
    return tuple(clock for clock in clocks if clock is not None)


def _modes(host: Host) -> dict[int, str]:
    named = re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", host.read(_MODES) or "")
    return {int(number): name for number, name in named}


def _cpu(host: Host) -> Clock | None:
    clocks = []
    for policy in host.find(_POLICIES):
        now, least, most, built = (
            _KILO * (host.number(policy / name) or 0)
            for name in ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")
        )
        if now:
            clocks.append(Clock("CPU", now, least, most, built))
    return max(clocks, key=lambda clock: clock.most_hz, default=None)


def _gpu(host: Host) -> Clock | None:
    for device in host.find("sys/class/devfreq/*"):
        if not _GPU_CLOCKS.search(device.name):
            continue
        now, least, most = (host.number(device / name) or 0 for name in ("cur_freq", "min_freq", "max_freq"))
        table = [int(text) for text in (host.read(device / "available_frequencies") or "").split() if text.isdigit()]
        if now or most:
            return Clock("GPU", now, least, most, max(table, default=0))
    return None


def _memory(host: Host, jtop: JtopFacts | None) -> Clock | None:
    """The kernel shows it to root alone; jtop's service is one."""
    now, built = host.number(f"{_EMC}/rate"), host.number(f"{_EMC}/max_rate")
    if now:
        return Clock("memory", now, built_hz=built or 0)
    if jtop is not None and jtop.emc_hz:
        return Clock("memory", jtop.emc_hz, most_hz=jtop.emc_most_hz)
    return None


_ZONES = "sys/class/thermal/thermal_zone*"
_COOLING = "sys/class/thermal/cooling_device*"
_COUNTERS = (
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count",
    "sys/class/hwmon/hwmon*/oc*_event_cnt",  # over-current events of a Jetson
)
_BELIEVED_C = (-40.0, 150.0)
"""Zones without a sensor give other numbers."""
_MILLI = 1e3


@dataclass(frozen=True)
class Zone:
    """A place with a sensor.

    Attributes:
        name: of it.
        celsius: now.
        slows_at: degrees from which on the kernel slows the machine down; None where it does not say.
    """

    name: str
    celsius: float
    slows_at: float | None = None


@dataclass(frozen=True)
class Throttling:
    """What slowed the machine down.

    Attributes:
        events: by heat or current, since it started; None where nothing counts them.
        now: parts that are held back at this moment.
    """

    events: int | None = None
    now: Sequence[str] = ()


def read_zones(host: Host) -> tuple[Zone, ...]:
    """Those with a sensor, the hottest first."""
    zones = []
    for path in host.find(_ZONES):
        name, thousandths = host.read(path / "type"), host.number(path / "temp")
        if name is None or thousandths is None:
            continue
        if _BELIEVED_C[0] < thousandths / _MILLI < _BELIEVED_C[1]:
            zones.append(Zone(name, thousandths / _MILLI, _passive_trip(host, str(path))))
    return tuple(sorted(zones, key=lambda zone: -zone.celsius))


def read_throttling(host: Host) -> Throttling:
    """Counters, and the alerts of a Jetson's power management."""
    counts = [host.number(path) for pattern in _COUNTERS for path in host.find(pattern)]
    known = [count for count in counts if count is not None]
    alerts = []
    for path in host.find(_COOLING):
        found = re.fullmatch(r"(\w+)-throttle-alert", host.read(path / "type") or "")
        if found and host.number(path / "cur_state"):
            alerts.append(found[1])
    return Throttling(sum(known) if known else None, tuple(alerts))


def _passive_trip(host: Host, zone: str) -> float | None:
    for path in host.find(f"{zone}/trip_point_*_type"):
        thousandths = host.number(str(path).removesuffix("_type") + "_temp")
        if host.read(path) == "passive" and thousandths is not None and thousandths > 0:
            return thousandths / _MILLI
    return None


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(ask()).decode())
