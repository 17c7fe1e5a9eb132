"""Checks of the machine: memory, disk, open files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starsd_edge.doctor.findings import Finding, Level

LITTLE_DISK_BYTES = 2_000_000_000
"""An export of the default model takes 0.9 GB with its checkpoint, and twice that while it is made anew."""


@dataclass(frozen=True)
class MachineFacts:
    """What the machine has.

    Attributes:
        cores: that this process may use.
        memory_bytes, available_bytes: in all, and free for use.
        cache: directory of the cache.
        cache_free_bytes: on its disk.
        open_files: soft limit of this process.
        hub_files: open files of a hub with all the targets that it takes.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    cache: str
    cache_free_bytes: int
    open_files: int
    hub_files: int


def check_machine(facts: MachineFacts) -> Iterator[Finding]:
    """All of them."""
    memory = f"{gigabytes(facts.available_bytes)} of {gigabytes(facts.memory_bytes)} free, {facts.cores} cores"
    yield Finding("memory", Level.OK, memory)
    yield _disk(facts)
    yield _open_files(facts)


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
