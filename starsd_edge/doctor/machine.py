"""Checks of the machine: memory, disk, open files, power and heat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starsd_edge.doctor.findings import Finding, Level

HOT_C = 85.0
"""Most boards slow down not far above this."""
LITTLE_DISK_BYTES = 2_000_000_000
"""An export of the default model takes 0.9 GB with its checkpoint, and twice that while it is made anew."""
_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd-pstate")
"""Under these drivers the governor "powersave" also rises to full speed."""


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


@dataclass(frozen=True)
class MachineFacts:
    """What the machine has. None where it cannot be read.

    Attributes:
        cores: that this process may use.
        memory_bytes, available_bytes: in all, and free for use.
        cache: directory of the cache.
        cache_free_bytes: on its disk.
        open_files: soft limit of this process.
        hub_files: open files of a hub with all the targets that it takes.
        power_mode: of a Jetson.
        governor, driver: of the first core's frequency.
        throttle_events: how often heat or current has slowed the machine down since it started.
        hottest: name and degrees Celsius of the hottest zone.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    cache: str
    cache_free_bytes: int
    open_files: int
    hub_files: int
    power_mode: PowerMode | None = None
    governor: str | None = None
    driver: str | None = None
    throttle_events: int | None = None
    hottest: tuple[str, float] | None = None


def check_machine(facts: MachineFacts) -> Iterator[Finding]:
    """All of them that can be run."""
    memory = f"{gigabytes(facts.available_bytes)} of {gigabytes(facts.memory_bytes)} free, {facts.cores} cores"
    yield Finding("memory", Level.OK, memory)
    yield _disk(facts)
    yield _open_files(facts)
    if facts.power_mode is not None:
        yield _power(facts.power_mode)
    if facts.governor is not None:
        yield _governor(facts.governor, facts.driver)
    if facts.throttle_events is not None:
        yield _throttling(facts.throttle_events)
    if facts.hottest is not None:
        yield _heat(*facts.hottest)


def gigabytes(count: float) -> str:
    """In GB, or in MB below one."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _disk(facts: MachineFacts) -> Finding:
    text = f"{gigabytes(facts.cache_free_bytes)} free at {facts.cache}"
    if facts.cache_free_bytes >= LITTLE_DISK_BYTES:
        return Finding("disk", Level.OK, text)
    return Finding("disk", Level.WARNING, text, "free some space, or set STARSD_CACHE to another disk")


def _open_files(facts: MachineFacts) -> Finding:
    text = f"{facts.open_files} allowed; a hub with all its targets needs {facts.hub_files}"
    if facts.open_files >= facts.hub_files:
        return Finding("open files", Level.OK, text)
    return Finding("open files", Level.WARNING, text, f"ulimit -n {facts.hub_files}, before run-draft")


def _power(mode: PowerMode) -> Finding:
    text = f"{mode.number}{f' ({mode.name})' if mode.name else ''}"
    if mode.highest is None or mode.number == mode.highest:
        return Finding("power mode", Level.OK, text)
    return Finding("power mode", Level.NOTE, f"{text}, not the fastest", f"sudo nvpmodel -m {mode.highest}")


def _governor(governor: str, driver: str | None) -> Finding:
    if governor == "powersave" and driver not in _DYNAMIC_DRIVERS:
        remedy = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        return Finding("governor", Level.WARNING, "powersave keeps the cores at their lowest frequency", remedy)
    return Finding("governor", Level.OK, governor)


def _throttling(events: int) -> Finding:
    if events:
        text = f"slowed down by heat or current {events} times since it started"
        return Finding(
            "throttling", Level.NOTE, text, "look after cooling and power supply if it grows while you measure"
        )
    return Finding("throttling", Level.OK, "none since the machine started")


def _heat(zone: str, degrees: float) -> Finding:
    text = f"{degrees:.0f} °C at {zone}"
    if degrees >= HOT_C:
        return Finding("temperature", Level.WARNING, text, "let it cool down, or look after its cooling")
    return Finding("temperature", Level.OK, text)
