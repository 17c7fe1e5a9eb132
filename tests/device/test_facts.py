"""What is read of whole machines; see `tests.support.boards` for where their files come from."""

from __future__ import annotations

from pathlib import Path

from starsd_edge.device.facts import DeviceFacts, power_mode_name, read_device
from starsd_edge.device.host import Host
from starsd_edge.device.power import Clock, PowerMode, Throttling
from tests.support.boards import Machine, agx_orin, desktop, host_of, orin_nano, thor


def look(machine: Machine) -> DeviceFacts:
    return read_device(machine.host, machine.devices)


def test_an_orin_nano_with_jetpack_6(tmp_path: Path) -> None:
    facts = look(orin_nano(tmp_path))
    assert str(facts.board) == (
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super (Orin Nano 8GB (developer kit), tegra234, "
        "sm87)"
    )
    assert facts.system is not None
    assert (str(facts.system), facts.system.tensorrt) == ("JetPack 6.2, L4T 36.4.3", "10.3.0.30")
    assert facts.power_mode == PowerMode(1, "25W", 2)
    cpu, gpu = facts.clocks
    assert cpu == Clock("CPU", 729_600_000, 729_600_000, 1_344_000_000, 1_728_000_000)
    assert gpu == Clock("GPU", 306_000_000, 306_000_000, 918_000_000, 1_020_000_000)
    assert facts.memory is not None
    assert (facts.memory.total, facts.memory.free) == (7_802_168 << 10, 5_242_880 << 10)
    assert [(zone.name, zone.celsius, zone.slows_at) for zone in facts.zones] == [
        ("gpu-thermal", 50.125, 99.0),
        ("cpu-thermal", 49.25, 99.0),
    ]
    assert facts.throttling == Throttling(0, ())
    assert [gpu.name for gpu in facts.gpus.found] == ["Orin"]
    assert facts.compute_capability == "sm87"


def test_an_agx_orin_with_jetpack_7_and_jtop(tmp_path: Path) -> None:
    facts = look(agx_orin(tmp_path))
    assert facts.board is not None
    assert (facts.board.module, facts.board.family) == ("AGX Orin 64GB", "Orin")
    assert facts.system is not None
    assert (str(facts.system), facts.system.tensorrt) == ("JetPack 7.2, L4T 39.2.0", "10.16.2.10")
    assert facts.power_mode == PowerMode(0, "MAXN", 0)
    assert [clock.name for clock in facts.clocks] == ["CPU", "GPU", "memory"]
    assert facts.clocks[2].hz == 3_199_000_000, "from jtop's service: the kernel shows it to root alone"
    assert not any(clock.follows_load for clock in facts.clocks)


def test_a_thor(tmp_path: Path) -> None:
    facts = look(thor(tmp_path))
    assert facts.board is not None
    assert (facts.board.module, facts.board.family, facts.compute_capability) == ("AGX Thor", "Thor", "sm110")
    assert facts.system is not None
    assert (facts.system.jetpack, facts.system.tensorrt) == ("7.0", "10.13.3.9"), "from its release, without a package"
    assert facts.clocks[1].most_hz == 1_575_000_000, "the graphics clock, not the video one"
    gpu = facts.gpus.found[0]
    assert (gpu.name, gpu.driver, gpu.memory_bytes, gpu.held_back) == ("NVIDIA Thor", "580.00", 0, ())


def test_a_desktop(tmp_path: Path) -> None:
    facts = look(desktop(tmp_path))
    assert (facts.board, facts.system, facts.power_mode) == (None, None, None)
    gpu = facts.gpus.found[0]
    assert (gpu.compute_capability, gpu.watts, gpu.celsius) == ("sm89", 450.0, 71.0)
    assert (gpu.memory_bytes, gpu.free_bytes) == (24_564 << 20, 20_211 << 20)
    assert gpu.held_back == ("power limit",)
    assert facts.throttling.events == 3


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    facts = look(Machine(host_of(tmp_path, {})))
    assert facts == DeviceFacts()
    assert facts.compute_capability == ""


def test_the_power_mode_is_what_times_are_kept_under(tmp_path: Path) -> None:
    assert power_mode_name(orin_nano(tmp_path / "nano").host) == "25W"
    assert power_mode_name(desktop(tmp_path / "desk").host) == ""


def test_this_machine_can_be_read() -> None:
    facts = read_device(Host())
    assert facts.memory is not None
    assert 0 < facts.memory.free <= facts.memory.total
