"""Checks of Python and the libraries, for machines that this one is not."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from starsd_edge.doctor import gather
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.software import SPEEDUPS, SoftwareFacts, check_gpu_engines, check_software

DESK = SoftwareFacts(
    program="0.1.0",
    python="3.12.1",
    system="Linux 6.8 x86_64",
    versions={"numpy": "2.4.6", "onnxruntime": "1.32.0", "tensorrt": None},
    broken={},
    onnxruntime_distributions=("onnxruntime",),
    providers=("CPUExecutionProvider",),
    is_jetson=False,
    is_isolated=True,
    sees_tensorrt=False,
    gpu="",
)
JETSON = replace(DESK, system="Linux 6.8 aarch64, Orin Nano, L4T 36.4.3", is_jetson=True, gpu="an NVIDIA GPU (/dev/x)")


def found(facts: SoftwareFacts, name: str) -> list[Finding]:
    return [each for each in check_software(facts) if each.name == name]


def test_a_good_machine_has_nothing_to_mend() -> None:
    findings = [*check_software(DESK)]
    assert {each.level for each in findings} == {Level.OK}
    assert not any(each.remedy for each in findings)
    assert "numpy 2.4.6, onnxruntime 1.32.0" in found(DESK, "libraries")[0].finding


@pytest.mark.parametrize(("gpu", "extra"), [("", "starsd-edge[cpu]"), ("an NVIDIA GPU (/dev/x)", "starsd-edge[cuda]")])
def test_two_onnxruntimes_are_a_failure_with_the_command_that_mends_it(gpu: str, extra: str) -> None:
    both = replace(DESK, onnxruntime_distributions=("onnxruntime-gpu", "onnxruntime"), gpu=gpu)
    only = found(both, "onnxruntime")[0]
    assert only.level is Level.FAILURE
    assert only.remedy == f"pip uninstall -y onnxruntime onnxruntime-gpu, then pip install '{extra}'"


def test_no_onnxruntime_leaves_a_hub_that_drafts_by_ngrams() -> None:
    only = found(replace(DESK, onnxruntime_distributions=()), "onnxruntime")[0]
    assert (only.level, only.remedy) == (Level.WARNING, "pip install 'starsd-edge[cpu]'")


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
    assert "/dev/x" in next(check_gpu_engines(JETSON, ["cuda"])).finding


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (JETSON, Level.WARNING, "--system-site-packages"),
        (replace(JETSON, is_isolated=False), Level.WARNING, "python3-libnvinfer"),
        (replace(JETSON, sees_tensorrt=True), Level.OK, ""),
    ],
)
def test_a_jetson_needs_the_systems_packages(facts: SoftwareFacts, level: Level, words: str) -> None:
    only = found(facts, "tensorrt")[0]
    assert only.level is level
    assert words in only.remedy


def test_elsewhere_tensorrt_is_not_asked_for() -> None:
    assert found(DESK, "tensorrt") == []


def test_this_machine_can_be_read() -> None:
    facts = gather.gather_software()
    assert facts.versions["msgspec"]
    assert facts.broken == {}
    assert facts.is_isolated == (sys.prefix != sys.base_prefix)
    assert {each.level for each in check_software(facts)} <= {Level.OK, Level.NOTE, Level.WARNING}


def test_a_broken_onnxruntime_has_no_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    assert importlib.import_module("onnxruntime") is sys.modules["onnxruntime"]
    assert gather.gather_software().providers == ()


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
