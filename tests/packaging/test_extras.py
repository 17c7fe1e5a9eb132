"""What the extras bring together, for each Python and kind of machine that is served."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from starsd_edge.errors import EXTRA_OF

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MACHINES = list(itertools.product(("3.10", "3.11", "3.12"), ("x86_64", "aarch64")))
ONNXRUNTIMES = {"onnxruntime", "onnxruntime-gpu"}


def brought(extras: Iterable[str], python: str, machine: str) -> list[Requirement]:
    environment: dict[str, Any] = {"python_version": python, "platform_machine": machine}
    lines = [Requirement(line) for extra in extras for line in EXTRAS[extra]]
    return [each for each in lines if each.marker is None or each.marker.evaluate(environment)]


@pytest.mark.parametrize(("python", "machine"), MACHINES)
def test_no_extras_but_cpu_and_cuda_bring_an_onnx_runtime(python: str, machine: str) -> None:
    """Its two distributions overwrite each other's files, so nothing else may bring one of them along."""
    for extra in EXTRAS:
        found = ONNXRUNTIMES & {each.name for each in brought([extra], python, machine)}
        has_wheel = (python, machine) != ("3.10", "aarch64")
        wanted = {"cpu": {"onnxruntime"}, "cuda": {"onnxruntime-gpu"} if has_wheel else set()}
        assert found == wanted.get(extra, set()), extra
    assert EXTRA_OF["onnxruntime"] == "cpu"


@pytest.mark.parametrize(("python", "machine"), MACHINES)
def test_a_gpu_gets_its_libraries_and_a_version_that_is_there(python: str, machine: str) -> None:
    """1.23.2 is the newest onnxruntime-gpu for Python 3.10; it has no wheel for aarch64 there."""
    found = [each for each in brought(["cuda"], python, machine) if each.name == "onnxruntime-gpu"]
    assert all(each.extras == {"cuda", "cudnn"} for each in found)
    newest = "1.23.2" if python == "3.10" else "1.31.1"
    assert all(each.specifier.contains(newest) for each in found)
    assert "cuda-python" in {each.name for each in brought(["cuda"], python, machine)}


@pytest.mark.parametrize(
    ("python", "release", "taken", "newer"),
    [
        ("3.10", 6, "12.6.2.post1", ("12.8.0", "12.9.10", "13.0.0")),
        ("3.12", 7, "13.0.3", ("13.1.0", "13.4.4", "13.5.0")),
    ],
)
def test_a_jetson_gets_no_cuda_calls_newer_than_its_driver(
    python: str, release: int, taken: str, newer: tuple[str, ...]
) -> None:
    """The drivers are of CUDA 12.6 (JetPack 6) and of 13.0 or newer. Until 12.6 cuda-python held the calls itself."""
    lines = (ROOT / "jetson" / "deploy" / f"constraints-jetpack{release}.txt").read_text().splitlines()
    limits = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {each.name for each in limits} == {"cuda-python", "cuda-bindings"}
    (only,) = brought(["jetson"], python, "aarch64")
    for each in (only, *limits):
        assert each.specifier.contains(taken)
        assert not any(each.specifier.contains(version) for version in newer)


def test_documents_name_one_onnx_runtime() -> None:
    for page in ("README.md", "export/README.md", "server/README.md", "docs/jetson.md"):
        for part in (ROOT / page).read_text().split(".[")[1:]:
            extras = part.partition("]")[0].split(",")
            assert set(extras) <= set(EXTRAS), (page, extras)
            assert not {"cpu", "cuda"} <= set(extras), (page, extras)
            assert "export" not in extras or {"cpu", "cuda"} & set(extras), (page, extras)
