"""Checks of memory, disk and open files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.gather import gather_machine
from starsd_edge.doctor.machine import LITTLE_DISK_BYTES, MachineFacts, check_machine, gigabytes

DESK = MachineFacts(
    cores=8,
    memory_bytes=32_000_000_000,
    available_bytes=20_000_000_000,
    cache="/home/u/.cache/starsd-edge",
    cache_free_bytes=500_000_000_000,
    open_files=1024,
    hub_files=576,
)


def only(facts: MachineFacts, name: str) -> Finding:
    found = [each for each in check_machine(facts) if each.name == name]
    assert len(found) == 1, found
    return found[0]


def test_what_cannot_be_read_is_not_guessed() -> None:
    assert [each.name for each in check_machine(DESK)] == ["memory", "disk", "open files"]
    assert {each.level for each in check_machine(DESK)} == {Level.OK}


def test_a_full_disk_is_a_warning() -> None:
    full = only(replace(DESK, cache_free_bytes=LITTLE_DISK_BYTES - 1), "disk")
    assert (full.level, "STARSD_CACHE" in full.remedy) == (Level.WARNING, True)


def test_a_hub_with_all_its_targets_needs_many_files() -> None:
    few = only(replace(DESK, open_files=256), "open files")
    assert (few.level, few.remedy) == (Level.WARNING, "ulimit -n 576, before run-draft")


def test_bytes_in_units() -> None:
    assert [gigabytes(n) for n in (12_345_678, 999_000_000, 1_540_000_000)] == ["12 MB", "999 MB", "1.5 GB"]


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    facts = gather_machine(tmp_path / "not" / "there", 576)
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.cache_free_bytes > 0
    assert facts.open_files > 0
