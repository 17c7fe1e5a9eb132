"""Single facts where machines differ: containers, old releases, nonsense in files, tools that fail."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from starsd_edge.device.gpus import CudaDevice, read_gpus
from starsd_edge.device.host import Host, run_command
from starsd_edge.device.import_probe import ProbedModule, probe_module, tried
from starsd_edge.device.jetson import full_tensorrt_version, read_board, read_jetson_system
from starsd_edge.device.power import (
    JtopFacts,
    PowerMode,
    ask,
    read_clocks,
    read_governor,
    read_jtop,
    read_power_mode,
    read_throttling,
    read_zones,
)
from starsd_edge.errors import EngineError
from tests.support.boards import host_of

MODES = {"etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n"}
TREE = "proc/device-tree"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {f"{TREE}/model": "Raspberry Pi 5", f"{TREE}/compatible": "raspberrypi,5-model-b\0brcm,bcm2712"},
            None,
        ),
        ({f"{TREE}/compatible": "nvidia,e9999\0nvidia,tegra777"}, "Jetson (tegra777)"),
        ({f"{TREE}/model": "NVIDIA Jetson of tomorrow"}, "NVIDIA Jetson of tomorrow"),
        ({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3,"}, "Jetson"),
        (
            {
                "sys/firmware/devicetree/base/model": "Jetson AGX Xavier",
                "sys/firmware/devicetree/base/compatible": "nvidia,p2972-0000\0nvidia,tegra194",
            },
            "Jetson AGX Xavier (p2972-0000, tegra194, sm72)",
        ),
    ],
)
def test_boards(tmp_path: Path, files: dict[str, str], told: str | None) -> None:
    board = read_board(host_of(tmp_path, files))
    assert (None if board is None else str(board)) == told


def test_the_module_counts_and_not_what_carries_it(tmp_path: Path) -> None:
    files = {f"{TREE}/compatible": "maker,own-board\0nvidia,p3768-0000+p3767-0001\0nvidia,tegra234"}
    board = read_board(host_of(tmp_path, files))
    assert board is not None
    assert board.module == "Orin NX 8GB"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, ("", "", "an unknown JetPack")),
        ({"etc/nv_tegra_release": "nonsense"}, ("", "", "an unknown JetPack")),
        ({"etc/nv_tegra_release": "# R99 (release), REVISION: 1.0, G"}, ("99.1.0", "", "L4T 99.1.0")),
        (
            {"var/lib/dpkg/status": "Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: 36.4.4-2025\n"},
            ("36.4.4", "6.2.1", "JetPack 6.2.1, L4T 36.4.4"),
        ),
    ],
)
def test_releases(tmp_path: Path, files: dict[str, str], told: tuple[str, str, str]) -> None:
    system = read_jetson_system(host_of(tmp_path, files))
    assert (system.l4t, system.jetpack, str(system)) == told


def test_the_package_tells_the_part_of_the_version_that_the_module_leaves_out(tmp_path: Path) -> None:
    status = "Package: libnvinfer10\nStatus: install ok installed\nVersion: 10.3.0.30-1+cuda12.5\n"
    host = host_of(tmp_path, {"var/lib/dpkg/status": status})
    assert full_tensorrt_version("10.3.0", host) == "10.3.0.30"
    assert full_tensorrt_version("10.3.0.26", host) == "10.3.0.26"
    assert full_tensorrt_version("10.3", host_of(tmp_path / "none", {})) == "10.3"


def test_a_removed_package_is_not_installed(tmp_path: Path) -> None:
    status = "Package: tensorrt\nStatus: deinstall ok config-files\nVersion: 10.3.0.30-1+cuda12.5\n"
    assert read_jetson_system(host_of(tmp_path, {"var/lib/dpkg/status": status})).tensorrt == ""


@pytest.mark.parametrize(
    ("files", "commands", "jtop", "mode"),
    [
        ({}, {"nvpmodel": "NV Power Mode: MAXN\n0\n"}, None, None),
        (MODES, {}, None, None),
        (MODES, {"nvpmodel -q": "NV Fan Mode:quiet\nNV Power Mode: 15W\n0\n"}, None, PowerMode(0, "15W", 2)),
        (MODES, {}, JtopFacts(2, "MAXN_SUPER"), PowerMode(2, "MAXN_SUPER", 2)),
        (MODES | {"var/lib/nvpmodel/status": "pmode:0009"}, {}, None, PowerMode(9, "", 2)),
        (MODES | {"var/lib/nvpmodel/status": "unknown"}, {}, None, None),
    ],
)
def test_power_modes(
    tmp_path: Path, files: dict[str, str], commands: dict[str, str], jtop: JtopFacts | None, mode: PowerMode | None
) -> None:
    assert read_power_mode(host_of(tmp_path, files, commands), jtop) == mode


def test_files_with_nonsense_are_as_good_as_none(tmp_path: Path) -> None:
    files = {
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
        "sys/class/thermal/thermal_zone0/temp": "hot",
        "sys/class/devfreq/17000000.gpu/cur_freq": "fast",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "",
        "sys/class/hwmon/hwmon0/oc1_event_cnt": "many",
    }
    host = host_of(tmp_path, files)
    assert read_zones(host) == ()
    assert read_clocks(host) == ()
    assert read_throttling(host).events is None
    assert read_governor(host) == (None, None)


def test_what_holds_a_board_back_is_named(tmp_path: Path) -> None:
    files = {
        "sys/class/thermal/cooling_device0/type": "gpu-throttle-alert\n",
        "sys/class/thermal/cooling_device0/cur_state": "1\n",
        "sys/class/thermal/cooling_device1/type": "cpu-throttle-alert\n",
        "sys/class/thermal/cooling_device1/cur_state": "0\n",
        "sys/class/hwmon/hwmon1/oc1_event_cnt": "3",
        "sys/class/hwmon/hwmon1/oc2_event_cnt": "4",
    }
    throttling = read_throttling(host_of(tmp_path, files))
    assert (throttling.now, throttling.events) == (("gpu",), 7)


def test_root_sees_the_memory_clock_without_jtop(tmp_path: Path) -> None:
    emc = "sys/kernel/debug/bpmp/debug/clk/emc"
    clocks = read_clocks(host_of(tmp_path, {f"{emc}/rate": "665600000", f"{emc}/max_rate": "2133000000"}))
    assert [(clock.name, clock.hz, clock.built_hz) for clock in clocks] == [("memory", 665_600_000, 2_133_000_000)]


def no_driver() -> list[CudaDevice]:
    raise EngineError("there is no NVIDIA driver on this machine: install one")


def test_gpus_by_the_tool_by_the_driver_or_not_at_all(tmp_path: Path) -> None:
    def driver() -> list[CudaDevice]:
        return [CudaDevice("A GPU", "sm86", 8 << 30)]

    two = "One, 580, 8.6, 8192, 8000\nTwo, of a kind, 580, 8.6, 8192, 8000\n"
    only_plain = host_of(tmp_path, {}, {"compute_cap,memory.total,memory.free --": two})
    assert [gpu.name for gpu in read_gpus(only_plain, no_driver).found] == ["One"], "a row of another form is left out"
    silent = host_of(tmp_path, {"dev/nvidiactl": ""})
    assert [gpu.name for gpu in read_gpus(silent, driver).found] == ["A GPU"]
    none = read_gpus(silent, no_driver)
    assert (none.found, none.device, "no NVIDIA driver" in none.problem) == ((), "/dev/nvidiactl", True)
    assert read_gpus(host_of(tmp_path / "other", {}), no_driver).problem == "", "nothing shows itself, nothing is wrong"


@pytest.mark.parametrize(
    ("bits", "told"),
    [
        ("0x0000000000000001", ()),
        ("0x0000000000000060", ("heat",)),
        ("0x0000000000000084", ("power limit", "power supply")),
        ("[N/A]", ()),
    ],
)
def test_why_a_gpu_is_held_back(tmp_path: Path, bits: str, told: tuple[str, ...]) -> None:
    row = f"A GPU, 580, 8.9, 24564, 24000, 50, 210, 3105, 450.00, {bits}\n"
    assert read_gpus(host_of(tmp_path, {}, {"nvidia-smi": row}), no_driver).found[0].held_back == told


def test_jtop_is_asked_only_where_its_service_runs_and_its_nonsense_costs_nothing(tmp_path: Path) -> None:
    facts = '{"mode_id":2,"mode_name":"MAXN"}'
    assert read_jtop(host_of(tmp_path / "a", {}, {"device.power": facts})) is None
    assert read_jtop(host_of(tmp_path / "b", {"run/jtop.sock": ""}, {"device.power": facts})) == JtopFacts(2, "MAXN")
    assert read_jtop(host_of(tmp_path / "c", {"run/jtop.sock": ""}, {"device.power": "Traceback"})) is None
    assert read_jtop(host_of(tmp_path / "d", {"run/jtop.sock": ""})) is None


class FakeJtop:
    """As the public documentation of jetson-stats describes its client."""

    nvpmodel: ClassVar[object] = SimpleNamespace(id=1, name="25W")
    memory: ClassVar[object] = {"RAM": {"tot": 1}, "EMC": {"cur": 2_133_000, "max": 3_199_000, "val": 5}}

    def __enter__(self) -> FakeJtop:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ok(self) -> bool:
        return True


def test_what_jtops_client_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("jtop")
    module.jtop = FakeJtop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jtop", module)
    assert ask() == JtopFacts(1, "25W", 2_133_000_000, 3_199_000_000)
    monkeypatch.setattr(FakeJtop, "nvpmodel", None)
    monkeypatch.setattr(FakeJtop, "memory", {})
    assert ask() == JtopFacts()


def test_commands_that_fail_or_are_not_there_say_nothing() -> None:
    assert run_command([sys.executable, "-c", "print('told')"]) == "told\n"
    assert run_command([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert run_command(["/no/such/tool"]) is None


def test_a_number_is_one_or_none(tmp_path: Path) -> None:
    host = host_of(tmp_path, {"one": "12\n", "none": "twelve", "binary": "\0"})
    assert [host.number(name) for name in ("one", "none", "binary", "missing")] == [12, None, None, None]
    assert Host(tmp_path).exists("one")


def test_a_module_is_imported_elsewhere_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_a_folder").mkdir()
    (tmp_path / "well_made.py").write_text("__version__ = '10.3.0'\n")
    (tmp_path / "ill_made.py").write_text("raise OSError('libnvinfer.so.10: cannot open\\nshared object file')\n")
    assert tried("well_made") == ProbedModule("10.3.0")
    assert tried("only_a_folder") == ProbedModule(is_empty=True, paths=[str(tmp_path / "only_a_folder")])
    assert tried("ill_made").error == "libnvinfer.so.10: cannot open shared object file"
    assert probe_module("no_such_module", run_command) is None
    assert probe_module("well_made", lambda command: None) == ProbedModule(
        error="the process that imports it ends, or takes too long"
    )
    assert probe_module("msgspec", run_command) == tried("msgspec"), "in a process of its own, the same"
