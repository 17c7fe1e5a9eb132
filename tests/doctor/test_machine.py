"""Checks of the machine, and how a Jetson's own files are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from starsd_edge.doctor import sysfs
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.gather import gather_machine
from starsd_edge.doctor.machine import LITTLE_DISK_BYTES, MachineFacts, PowerMode, check_machine, gigabytes

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


@pytest.mark.parametrize(
    ("mode", "level", "remedy"),
    [
        (PowerMode(0, "MAXN", 0), Level.OK, ""),
        (PowerMode(2, "15W", 0), Level.NOTE, "sudo nvpmodel -m 0"),
        (PowerMode(2, "", None), Level.OK, ""),
    ],
)
def test_power_modes(mode: PowerMode, level: Level, remedy: str) -> None:
    found = only(replace(DESK, power_mode=mode), "power mode")
    assert (found.level, found.remedy) == (level, remedy)


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        ("powersave", "cpufreq-dt", Level.WARNING),
        ("powersave", "intel_pstate", Level.OK),
        ("schedutil", "cpufreq-dt", Level.OK),
    ],
)
def test_governors(governor: str, driver: str, level: Level) -> None:
    assert only(replace(DESK, governor=governor, driver=driver), "governor").level is level


def test_heat() -> None:
    assert only(replace(DESK, throttle_events=0), "throttling").level is Level.OK
    assert only(replace(DESK, throttle_events=7), "throttling").level is Level.NOTE
    assert only(replace(DESK, hottest=("cpu-thermal", 51.0)), "temperature").finding == "51 °C at cpu-thermal"
    assert only(replace(DESK, hottest=("cpu-thermal", 91.0)), "temperature").level is Level.WARNING


def test_bytes_in_units() -> None:
    assert [gigabytes(n) for n in (12_345_678, 999_000_000, 1_540_000_000)] == ["12 MB", "999 MB", "1.5 GB"]


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def jetson(tmp_path: Path) -> Path:
    """The files of a board that runs at 15 W and is warm."""
    write(tmp_path, "etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic, EABI: aarch64\n")
    write(tmp_path, "proc/device-tree/model", "NVIDIA Jetson Orin Nano Developer Kit\0")
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0001 fmode:fanNull")
    modes = "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=1 NAME=15W >\n"
    write(tmp_path, "etc/nvpmodel.conf", modes)
    write(tmp_path, "dev/nvhost-gpu", "")
    write(tmp_path, "sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "61250\n")
    write(tmp_path, "sys/class/thermal/thermal_zone1/type", "gpu-thermal\n")
    write(tmp_path, "sys/class/thermal/thermal_zone1/temp", "-256000\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/oc1_event_cnt", "3\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/oc2_event_cnt", "4\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")
    return tmp_path


def test_a_jetsons_files_are_read(jetson: Path) -> None:
    assert sysfs.jetson_release(jetson) == "NVIDIA Jetson Orin Nano Developer Kit, L4T 36.4.3"
    assert sysfs.power_mode(jetson) == PowerMode(1, "15W", 0)
    assert sysfs.nvidia_gpu(jetson) == "an NVIDIA GPU (/dev/nvhost-gpu)"
    assert sysfs.hottest_zone(jetson) == ("cpu-thermal", 61.25)
    assert sysfs.throttle_events(jetson) == 7
    assert sysfs.frequency_governor(jetson) == ("schedutil", None)


def test_where_there_are_no_such_files_nothing_is_told(tmp_path: Path) -> None:
    assert sysfs.jetson_release(tmp_path) is None
    assert sysfs.power_mode(tmp_path) is None
    assert sysfs.nvidia_gpu(tmp_path) == ""
    assert sysfs.hottest_zone(tmp_path) is None
    assert sysfs.throttle_events(tmp_path) is None
    assert sysfs.frequency_governor(tmp_path) == (None, None)


def test_files_with_nonsense_are_as_good_as_none(jetson: Path) -> None:
    write(jetson, "var/lib/nvpmodel/status", "unknown")
    write(jetson, "sys/class/thermal/thermal_zone0/temp", "hot")
    (jetson / "etc/nv_tegra_release").unlink()
    assert sysfs.power_mode(jetson) is None
    assert sysfs.hottest_zone(jetson) is None
    assert sysfs.jetson_release(jetson) == "NVIDIA Jetson Orin Nano Developer Kit"


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    facts = gather_machine(tmp_path / "not" / "there", 576)
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.cache_free_bytes > 0
    assert facts.open_files > 0
