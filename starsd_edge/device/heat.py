"""Temperatures, and what slowed the machine down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starsd_edge.device.host import Host

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
