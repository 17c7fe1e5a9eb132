"""Room for an engine, and one that fits this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.engine_manifest import EngineHost
from starsd_edge.device.facts import DeviceFacts
from starsd_edge.device.gpus import Gpu, Gpus
from starsd_edge.device.host import HostMemory
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.device.jetson import Board, JetsonSystem
from starsd_edge.doctor.bundle import EngineNeeds, check_engine, check_engine_memory, engine_hosts
from starsd_edge.doctor.findings import Finding, Level
from tests.support.small_bundle import write_small_bundle
from tests.support.small_engine import small_engine

GB = 10**9
HERE = EngineHost("tensorrt", "10.3.0.30", "sm87", "linux-aarch64")
NEEDS = EngineNeeds(building=3 * GB, running=2 * GB, context=4096)
NANO = DeviceFacts(board=Board("A kit", soc="tegra234", family="Orin", compute_capability="sm87"))
CARD = Gpu("A GPU", memory_bytes=24 * GB, free_bytes=9 * GB)
DESK = DeviceFacts(memory=HostMemory(64 * GB, 40 * GB, 0), gpus=Gpus((CARD,)))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return load_bundle(write_small_bundle(tmp_path / "small"))


def room(facts: DeviceFacts, needs: EngineNeeds = NEEDS) -> Finding:
    (finding,) = check_engine_memory("small", needs, facts)
    return finding


@pytest.mark.parametrize(
    ("total", "free", "level", "says"),
    [
        (8 * GB, 5 * GB, Level.OK, "about 2.0 GB to run with 4096 tokens, about 3.0 GB to build it; 5.0 GB are free"),
        (8 * GB, 2.5 * GB, Level.WARNING, "about 3.0 GB to build it are more than the 2.5 GB that are free"),
        (8 * GB, 1 * GB, Level.WARNING, "and 1.0 GB are free"),
        (1.5 * GB, 1 * GB, Level.WARNING, "and there are 1.5 GB in all"),
    ],
)
def test_room_on_a_board_is_that_of_cpu_and_gpu_together(total: float, free: float, level: Level, says: str) -> None:
    found = room(replace(NANO, memory=HostMemory(int(total), int(free), 0)))
    assert found.level is level
    assert says in found.finding
    assert bool(found.remedy) == (level is not Level.OK)


def test_a_gpu_of_its_own_has_to_hold_what_runs_and_the_machine_what_is_built() -> None:
    assert room(DESK).level is Level.OK
    assert "9.0 GB are free" in room(DESK, replace(NEEDS, running=12 * GB)).finding
    assert "24.0 GB in all" in room(DESK, replace(NEEDS, running=30 * GB)).finding
    assert "more than the 40.0 GB" in room(DESK, replace(NEEDS, building=50 * GB)).finding


def test_where_memory_is_not_known_nothing_is_said() -> None:
    assert [*check_engine_memory("small", NEEDS, NANO)] == []


def test_an_engine_that_fits(bundle: Bundle, tmp_path: Path) -> None:
    old = small_engine(bundle.manifest, replace(HERE, version="9.0.0.1"))
    engines = [(tmp_path / "old", old), (tmp_path / "one", small_engine(bundle.manifest, HERE))]
    assert check_engine(bundle, engines, [HERE]) == Finding(
        "engine", Level.OK, "small: built for sm87 and tensorrt 10.3.0.30, up to 32 tokens, trees of 16 rows"
    )


def test_an_engine_of_either_library_may_fit(bundle: Bundle, tmp_path: Path) -> None:
    rtx = EngineHost("tensorrt_rtx", "1.7.1.116", "sm87", "linux-aarch64")
    engines = [(tmp_path / "rtx", small_engine(bundle.manifest, rtx))]
    assert check_engine(bundle, engines, [HERE, rtx]).level is Level.OK
    other = check_engine(bundle, engines, [HERE])
    assert (other.level, "of another kind of library" in other.finding) == (Level.WARNING, True)
    assert check_engine(bundle, [], [rtx]).remedy.endswith("--engine tensorrt-rtx")


def test_no_engine_or_none_that_fits_is_told_with_the_command(bundle: Bundle, tmp_path: Path) -> None:
    none = check_engine(bundle, [], [HERE])
    assert (none.level, none.remedy) == (Level.NOTE, f"starsd-edge export {bundle.path} --engine tensorrt")
    old = check_engine(
        bundle, [(tmp_path / "old", small_engine(bundle.manifest, replace(HERE, version="8.5.2.2")))], [HERE]
    )
    assert old.level is Level.WARNING
    assert "another version of tensorrt (8.5.2.2; here it is 10.3.0.30)" in old.finding
    assert "`starsd-edge export small --engine tensorrt`" in old.finding


@pytest.mark.parametrize(
    ("packages", "module", "version"),
    [
        ({"tensorrt": "10.3.0.30-1+cuda12.5"}, "10.3.0", "10.3.0.30"),
        ({"libnvinfer10": "10.16.2.10-1+cuda13.2"}, "10.16.2.10", "10.16.2.10"),
        ({"libnvinfer10": "10.3.0.30-1"}, "10.9.0", "10.9.0"),
        ({}, "10.3.0", "10.3.0"),
    ],
)
def test_all_four_parts_of_the_version_are_known(packages: dict[str, str], module: str, version: str) -> None:
    facts = replace(NANO, system=JetsonSystem("36.4.3", "6.2", packages))
    (host,) = engine_hosts(facts, {"tensorrt": ProbedModule(module), "tensorrt_rtx": None})
    assert (host.library, host.version, host.compute_capability) == ("tensorrt", version, "sm87")


def test_without_a_gpu_or_a_library_nothing_would_run_an_engine() -> None:
    modules = [None, ProbedModule(error="no libnvinfer"), ProbedModule(is_empty=True)]
    assert [engine_hosts(NANO, {"tensorrt": module}) for module in modules] == [(), (), ()]
    assert engine_hosts(DeviceFacts(), {"tensorrt": ProbedModule("10.3.0.30")}) == ()
    both = {"tensorrt": ProbedModule("10.16.2.10"), "tensorrt_rtx": ProbedModule("1.7.1.116")}
    assert [host.library for host in engine_hosts(NANO, both)] == [*both]
