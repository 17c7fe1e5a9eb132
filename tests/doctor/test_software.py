"""Checks of Python and the libraries, for machines that this one is not."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from starsd_edge.device.facts import DeviceFacts, read_device
from starsd_edge.device.host import Host
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.device.jetson import PYTHON_TENSORRT, JetsonSystem
from starsd_edge.doctor import gather
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.software import SPEEDUPS, SoftwareFacts, check_gpu_engines, check_software
from starsd_edge.errors import install_extra

DESK = SoftwareFacts(
    program="0.1.0",
    python="3.12.1",
    system="Linux 6.8 x86_64",
    versions={"numpy": "2.4.6", "onnxruntime": "1.32.0", "tensorrt": None},
    broken={},
    onnxruntime_distributions=("onnxruntime",),
    providers=("CPUExecutionProvider",),
    jetson=None,
    is_isolated=True,
    tensorrt=None,
    gpu="",
)
SYSTEM = JetsonSystem("36.4.3", "6.2", {"tensorrt": "10.3.0.30-1+cuda12.5"})
JETSON = replace(DESK, system="Linux 6.8 aarch64", jetson=SYSTEM, gpu="Orin")
WITH_PYTHON = replace(SYSTEM, packages={**SYSTEM.packages, PYTHON_TENSORRT: "10.3.0.30-1"})
SEEN = ProbedModule("10.3.0")


def found(facts: SoftwareFacts, name: str) -> list[Finding]:
    return [each for each in check_software(facts) if each.name == name]


def test_a_good_machine_has_nothing_to_mend() -> None:
    findings = [*check_software(DESK)]
    assert {each.level for each in findings} == {Level.OK}
    assert not any(each.remedy for each in findings)
    assert "numpy 2.4.6, onnxruntime 1.32.0" in found(DESK, "libraries")[0].finding


@pytest.mark.parametrize(("gpu", "extra"), [("", "cpu"), ("an NVIDIA GPU (/dev/x)", "cuda")])
def test_two_onnxruntimes_are_a_failure_with_the_command_that_mends_it(gpu: str, extra: str) -> None:
    both = replace(DESK, onnxruntime_distributions=("onnxruntime-gpu", "onnxruntime"), gpu=gpu)
    only = found(both, "onnxruntime")[0]
    assert only.level is Level.FAILURE
    assert only.remedy == f"pip uninstall -y onnxruntime onnxruntime-gpu, then {install_extra(extra)}"


def test_no_onnxruntime_leaves_a_hub_that_drafts_by_ngrams() -> None:
    only = found(replace(DESK, onnxruntime_distributions=()), "onnxruntime")[0]
    assert (only.level, only.remedy) == (Level.WARNING, install_extra("cpu"))


def test_a_board_needs_no_onnxruntime_beside_tensorrt() -> None:
    only = found(replace(JETSON, onnxruntime_distributions=(), tensorrt=SEEN), "onnxruntime")[0]
    assert (only.level, "only engines of TensorRT run here" in only.finding) == (Level.NOTE, True)


def test_missing_speedups_are_a_warning() -> None:
    only = found(replace(DESK, broken={SPEEDUPS: "no such module"}), "websockets")[0]
    assert only.level is Level.WARNING
    assert "--only-binary websockets" in only.remedy


def test_a_compiled_library_that_does_not_load_is_a_failure() -> None:
    broken = found(replace(DESK, broken={"msgspec.msgpack": "wrong ELF class"}), "libraries")[1]
    assert (broken.level, "wrong ELF class" in broken.finding) == (Level.FAILURE, True)
    assert broken.remedy.endswith(" msgspec")


def test_a_listed_gpu_provider_proves_nothing() -> None:
    lists = replace(DESK, providers=("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"))
    only = found(lists, "providers")[0]
    assert only.level is Level.NOTE
    assert "TensorrtExecutionProvider, CUDAExecutionProvider, which says only" in only.finding


def test_engines_that_are_not_there_are_said_not_to_be() -> None:
    here = [*check_gpu_engines(DESK, ["cuda", "jetson"])]
    assert [(each.name, each.level) for each in here] == [
        ("engine cuda", Level.NOT_RUN),
        ("engine jetson", Level.NOT_RUN),
    ]
    assert "no NVIDIA GPU on this machine" in here[0].finding
    assert next(check_gpu_engines(JETSON, ["cuda"])).finding == "no bundle here has an engine for it (Orin)"


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (JETSON, Level.WARNING, "--system-site-packages"),
        (replace(JETSON, is_isolated=False), Level.WARNING, "python3-libnvinfer"),
        (replace(JETSON, is_isolated=False, jetson=WITH_PYTHON), Level.WARNING, "/usr/bin/python3"),
        (replace(JETSON, tensorrt=SEEN), Level.OK, ""),
        (replace(JETSON, tensorrt=ProbedModule("10.9.0")), Level.WARNING, "the system's own counts"),
        (replace(DESK, gpu="A GPU"), Level.NOTE, "pip install tensorrt"),
        (replace(DESK, gpu="A GPU", tensorrt=ProbedModule("11.4.0")), Level.OK, ""),
        (
            replace(DESK, tensorrt=ProbedModule(is_empty=True, paths=["/venv/tensorrt"])),
            Level.WARNING,
            "tensorrt-stubs, or remove that folder",
        ),
        (replace(JETSON, tensorrt=ProbedModule(error="libnvinfer.so.10: no such file")), Level.WARNING, "one source"),
    ],
)
def test_whether_python_sees_tensorrt(facts: SoftwareFacts, level: Level, words: str) -> None:
    only = found(facts, "tensorrt")[0]
    assert only.level is level
    assert words in only.remedy


def test_a_folder_of_that_name_is_told_from_the_library() -> None:
    stubs = replace(DESK, tensorrt=ProbedModule(is_empty=True, paths=["/venv/tensorrt"]))
    assert "/venv/tensorrt, a folder without the library" in found(stubs, "tensorrt")[0].finding


def test_without_a_gpu_tensorrt_is_not_asked_for() -> None:
    assert found(DESK, "tensorrt") == []
    assert found(replace(DESK, tensorrt=ProbedModule("11.4.0")), "cuda") == []


@pytest.mark.parametrize(
    ("versions", "driver", "system", "level", "wanted"),
    [
        ({}, None, SYSTEM, Level.WARNING, "'cuda-python>=12.6.1,<12.7'"),
        ({}, None, JetsonSystem("39.2.0", "7.2"), Level.WARNING, "'cuda-python>=13.0,<13.3'"),
        ({}, None, JetsonSystem("38.2.0", "7.0"), Level.WARNING, "'cuda-python>=13.0,<13.1'"),
        ({}, None, None, Level.WARNING, "'cuda-python>=12.6.1,<14'"),
        ({}, (12, 8), None, Level.WARNING, "'cuda-python>=12.6.1,<12.9'"),
        ({"cuda-python": "12.6.2.post1"}, None, SYSTEM, Level.OK, ""),
        (
            {"cuda-python": "12.6.2.post1", "cuda-bindings": "12.9.10"},
            None,
            SYSTEM,
            Level.WARNING,
            "'cuda-python>=12.6.1,<12.7'",
        ),
        ({"cuda-bindings": "12.9.10"}, None, SYSTEM, Level.WARNING, "'cuda-python>=12.6.1,<12.7'"),
        ({"cuda-bindings": "12.9.10"}, (12, 9), SYSTEM, Level.OK, ""),
        ({"cuda-bindings": "13.5.0"}, None, SYSTEM, Level.WARNING, "'cuda-python>=12.6.1,<12.7'"),
        ({"cuda-bindings": "12.9.10"}, None, JetsonSystem("39.2.0", "7.2"), Level.WARNING, "'cuda-python>=13.0,<13.3'"),
        ({"cuda-bindings": "13.5.0"}, (12, 9), None, Level.WARNING, "'cuda-python>=12.6.1,<12.10'"),
        ({"cuda-bindings": "13.5.0"}, (13, 0), None, Level.NOTE, "'cuda-python>=13.0,<13.1'"),
        ({"cuda-bindings": "12.9.10"}, (13, 0), None, Level.OK, ""),
        ({"cuda-bindings": "13.5.0"}, None, None, Level.OK, ""),
        ({"cuda-bindings": "13.5.0"}, None, JetsonSystem("", ""), Level.OK, ""),
    ],
)
def test_cuda_calls_need_a_runtime_that_is_no_newer_than_the_driver(
    versions: dict[str, str | None],
    driver: tuple[int, int] | None,
    system: JetsonSystem | None,
    level: Level,
    wanted: str,
) -> None:
    facts = replace(JETSON, jetson=system, tensorrt=SEEN, versions=versions, cuda_of_driver=driver)
    only = found(facts, "cuda")[0]
    install = "pip uninstall -y cuda-bindings cuda-python, then pip install" if versions else "pip install"
    assert (only.level, only.remedy) == (level, wanted and f"{install} {wanted}")


def test_this_machine_can_be_read() -> None:
    facts = gather.gather_software(read_device(Host()), Host())
    assert facts.versions["msgspec"]
    assert facts.broken == {}
    assert facts.is_isolated == (sys.prefix != sys.base_prefix)
    assert {each.level for each in check_software(facts)} <= {Level.OK, Level.NOTE, Level.WARNING}


def test_a_broken_onnxruntime_has_no_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    assert importlib.import_module("onnxruntime") is sys.modules["onnxruntime"]
    assert gather.gather_software(DeviceFacts(), Host()).providers == ()


@pytest.mark.parametrize(
    ("settings", "isolated"),
    [
        ("home = /usr/bin\ninclude-system-site-packages = false\n", True),
        ("home = /usr/bin\ninclude-system-site-packages = true\n", False),
        ("", True),
    ],
)
def test_a_virtual_environment_says_what_it_sees(tmp_path: Path, settings: str, isolated: bool) -> None:
    (tmp_path / "pyvenv.cfg").write_text(settings)
    assert gather._is_isolated(tmp_path, Path("/usr")) is isolated
    assert gather._is_isolated(Path("/usr"), Path("/usr")) is False
