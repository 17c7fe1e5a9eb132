"""What the doctor says of boards, their systems, power, heat and GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from starsd_edge.device.facts import DeviceFacts, read_device
from starsd_edge.device.gpus import Gpu, Gpus
from starsd_edge.device.jetson import Board, JetsonSystem
from starsd_edge.device.power import Clock, PowerMode, Throttling, Zone
from starsd_edge.doctor.device import check_device
from starsd_edge.doctor.findings import Finding, Level
from tests.support.boards import agx_orin, desktop, orin_nano, thor

ORIN = Board("A kit", "Orin NX 8GB", "tegra234", "Orin", "sm87")


def findings(facts: DeviceFacts) -> dict[str, Finding]:
    found = [*check_device(facts)]
    named = {each.name: each for each in found}
    assert len(named) == len(found), found
    return named


def levels(facts: DeviceFacts) -> dict[str, str]:
    return {name: each.level.value for name, each in findings(facts).items()}


def test_an_orin_nano_with_jetpack_6(tmp_path: Path) -> None:
    machine = orin_nano(tmp_path)
    facts = read_device(machine.host, machine.devices)
    told = findings(facts)
    assert levels(facts) == {
        "board": "ok",
        "jetpack": "ok",
        "engines": "ok",
        "power mode": "note",
        "clocks": "note",
        "throttling": "ok",
        "temperature": "ok",
        "gpu": "ok",
    }
    assert told["jetpack"].finding == "JetPack 6.2, L4T 36.4.3"
    assert told["engines"].finding.startswith("TensorRT 10.3.0.30 runs append graphs; inplace ones need 10.15.1")
    assert (told["power mode"].finding, told["power mode"].remedy) == ("1 (25W), not the fastest", "sudo nvpmodel -m 2")
    assert told["clocks"].finding == (
        "CPU 729 of 1344 MHz (built for 1728), GPU 306 of 918 MHz (built for 1020); they follow the load"
    )
    assert "sudo jetson_clocks" in told["clocks"].remedy
    assert told["temperature"].finding == "50 °C at gpu-thermal, which slows down from 99 °C on"
    assert "8.0 GB for CPU and GPU together" in told["board"].finding


def test_an_agx_orin_with_jetpack_7(tmp_path: Path) -> None:
    machine = agx_orin(tmp_path)
    told = findings(read_device(machine.host, machine.devices))
    assert {each.level for each in told.values()} == {Level.OK}
    assert told["engines"].finding == "TensorRT 10.16.2.10 runs append and inplace graphs"
    assert told["clocks"].finding.endswith("memory 3199 of 3199 MHz")


def test_a_thor_with_jetpack_7_0(tmp_path: Path) -> None:
    machine = thor(tmp_path)
    told = findings(read_device(machine.host, machine.devices))
    assert "inplace ones need 10.15.1 (JetPack 7.2)" in told["engines"].finding
    assert told["gpu"].finding == "NVIDIA Thor, sm110, driver 580.00, 41 °C, at 315 of 1575 MHz"
    assert told["power mode"].remedy == "sudo nvpmodel -m 0"


def test_a_desktop(tmp_path: Path) -> None:
    machine = desktop(tmp_path)
    told = findings(read_device(machine.host, machine.devices))
    assert set(told) == {"governor", "clocks", "throttling", "temperature", "gpu"}
    assert told["governor"].level is Level.OK, "this driver rises to full speed under powersave too"
    assert told["clocks"].level is Level.OK
    assert told["gpu"].level is Level.NOTE
    assert told["gpu"].finding == (
        "NVIDIA GeForce RTX 4090, sm89, driver 580.95.05, 21.2 GB of 25.8 GB free, 71 °C, at 2520 of 3105 MHz, limit "
        "450 W; held back by power limit"
    )


def test_a_machine_that_shows_nothing_gets_no_finding() -> None:
    assert levels(DeviceFacts()) == {}


@pytest.mark.parametrize(
    ("tensorrt", "level", "says", "remedy"),
    [
        ("", Level.WARNING, "is not installed", "sudo apt-get install nvidia-jetpack"),
        ("8.5.2.2", Level.WARNING, "is too old", "install JetPack 6.2 or 7.2"),
        ("10.2.9.0", Level.WARNING, "is too old", "JetPack 6.2"),
        ("10.3.0.30", Level.OK, "runs append graphs", ""),
        ("10.15.0.9", Level.OK, "inplace ones need 10.15.1", ""),
        ("10.15.1.29", Level.OK, "append and inplace", ""),
        ("11.2.0.3", Level.WARNING, "supports no Jetson", "TensorRT 10"),
        ("11.4.1.0", Level.OK, "append and inplace", ""),
    ],
)
def test_which_engines_a_jetpack_runs(tensorrt: str, level: Level, says: str, remedy: str) -> None:
    packages = {"libnvinfer10": f"{tensorrt}-1+cuda12.5"} if tensorrt else {}
    found = findings(DeviceFacts(board=ORIN, system=JetsonSystem("36.4.3", "6.2", packages)))["engines"]
    assert found.level is level
    assert says in found.finding
    assert remedy in found.remedy


def test_a_container_that_hides_the_board_is_told_so() -> None:
    found = findings(DeviceFacts(board=Board("Jetson"), system=JetsonSystem("", "")))
    assert found["jetpack"].level is Level.NOTE
    assert "container" in found["jetpack"].finding
    assert "engines" not in found


@pytest.mark.parametrize(
    ("board", "says"),
    [
        (Board("New", "", "tegra777"), "does not know"),
        (Board("Old", "", "tegra194", "Xavier", "sm72"), "TensorRT 10.3"),
    ],
)
def test_boards_that_run_no_engine_are_warned_of(board: Board, says: str) -> None:
    found = findings(DeviceFacts(board=board))["board"]
    assert (found.level, says in found.finding, bool(found.remedy)) == (Level.WARNING, True, True)


@pytest.mark.parametrize(
    ("mode", "level", "remedy"),
    [
        (PowerMode(0, "MAXN", 0), Level.OK, ""),
        (PowerMode(2, "15W", 0), Level.NOTE, "sudo nvpmodel -m 0"),
        (PowerMode(2, "", None), Level.OK, ""),
    ],
)
def test_power_modes(mode: PowerMode, level: Level, remedy: str) -> None:
    found = findings(DeviceFacts(board=ORIN, power_mode=mode))["power mode"]
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
    assert findings(DeviceFacts(governor=governor, driver=driver))["governor"].level is level


def test_throttling() -> None:
    told = [Throttling(0), Throttling(7), Throttling(None, ("gpu", "cpu"))]
    found = [findings(DeviceFacts(throttling=each))["throttling"] for each in told]
    assert [each.level for each in found] == [Level.OK, Level.NOTE, Level.WARNING]
    assert found[2].finding == "held back now: gpu, cpu"


@pytest.mark.parametrize(
    ("zones", "level", "says"),
    [
        ([Zone("cpu", 51.0)], Level.OK, "51 °C at cpu"),
        ([Zone("cpu", 91.0)], Level.WARNING, "91 °C at cpu"),
        ([Zone("gpu", 96.0, 99.0)], Level.NOTE, "96 °C at gpu, which slows down from 99 °C on"),
        ([Zone("gpu", 99.0, 99.0)], Level.WARNING, "99 °C at gpu"),
        ([Zone("soc", 70.0, 99.0), Zone("wifi", 62.0, 60.0)], Level.WARNING, "62 °C at wifi"),
    ],
)
def test_heat(zones: list[Zone], level: Level, says: str) -> None:
    found = findings(DeviceFacts(zones=zones))["temperature"]
    assert found.level is level
    assert says in found.finding


def test_a_gpu_without_a_driver_that_answers() -> None:
    gpus = Gpus((), "/dev/nvidiactl", "there is no NVIDIA driver on this machine")
    at_a_desk = findings(DeviceFacts(gpus=gpus))["gpu"]
    assert (at_a_desk.level, "install NVIDIA's driver" in at_a_desk.remedy) == (Level.WARNING, True)
    on_a_board = findings(DeviceFacts(board=ORIN, gpus=replace(gpus, device="/dev/nvhost-gpu")))["gpu"]
    assert "nvidia-jetpack" in on_a_board.remedy


def test_a_gpu_that_heat_holds_back_is_a_warning() -> None:
    found = findings(DeviceFacts(gpus=Gpus((Gpu("A GPU", held_back=("power limit", "heat")),))))["gpu"]
    assert (found.level, "cooling" in found.remedy) == (Level.WARNING, True)


def test_a_gpu_of_which_little_is_told() -> None:
    found = findings(DeviceFacts(gpus=Gpus((Gpu("A GPU"),)), clocks=[Clock("CPU", 2_000_000_000)]))
    assert (found["gpu"].finding, found["clocks"].finding) == ("A GPU", "CPU 2000 MHz")
