"""From a bundle to its engine: everything that may be missing or wrong is one line, said before a plan is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE, engines_dir
from starsd_edge.bundles.engine_manifest import ENGINE_NAME, PLAN_NAME, EngineManifest
from starsd_edge.bundles.integrity import sha256_file
from starsd_edge.device import gpus
from starsd_edge.device.gpus import CudaDevice
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime.cuda import CUDA_MODULE
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import TOP_OUTPUTS
from starsd_edge.runtime.tensorrt.opening import Machine, open_tensorrt
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import DeviceTraits, FakeDevice
from tests.support.fake_plan import decode_plan, encode_plan
from tests.support.fake_tensorrt import ICudaEngine, fake_tensorrt
from tests.support.fake_trt_types import TensorLocation

if TYPE_CHECKING:
    from tests.support.fake_engine import FakeBuild, write_fake_engine
else:
    support = pytest.importorskip("tests.support.fake_engine", reason="needs torch")
    FakeBuild, write_fake_engine = support.FakeBuild, support.write_fake_engine

pytestmark = pytest.mark.export


@dataclass
class Board:
    """A machine with one GPU, and what is installed there.

    Attributes:
        versions: of TensorRT's libraries.
    """

    versions: dict[str, str] = field(default_factory=lambda: {"tensorrt": "10.16.2.10"})
    has_cuda_python: bool = True
    device: FakeDevice = field(default_factory=lambda: FakeDevice(DeviceTraits(is_integrated=True)))

    def machine(self) -> Machine:
        return Machine(self._devices, self._load)

    def _devices(self) -> Sequence[CudaDevice]:
        return [CudaDevice("Orin", self.device.name, 8 << 30)]

    def _load(self, name: str) -> Any:
        if name == CUDA_MODULE and self.has_cuda_python:
            return FakeCudart(self.device)
        if name in self.versions:
            return fake_tensorrt(self.device, self.versions[name], name)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bundle(tiny_tensorrt: dict[str, Bundle]) -> Bundle:
    return tiny_tensorrt["inplace"]


def build(bundle: Bundle, name: str = "engine", age: int = 0, **kind: Any) -> Path:
    """An engine in the cache, built so many seconds ago."""
    directory = engines_dir() / name
    write_fake_engine(bundle, directory, FakeBuild(**kind))
    file = directory / ENGINE_NAME
    os.utime(file, (file.stat().st_mtime - age,) * 2)
    return directory


def change(directory: Path, **fields: Any) -> None:
    """Alter an engine's manifest."""
    file = directory / ENGINE_NAME
    manifest = msgspec.json.decode(file.read_bytes(), type=EngineManifest)
    file.write_bytes(msgspec.json.encode(replace(manifest, **fields)))


def refusal(bundle: Bundle, board: Board | None = None, device: str = "jetson") -> str:
    with pytest.raises((EngineError, UsageError)) as caught:
        open_tensorrt(bundle, device, machine=(board or Board()).machine())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_engine_of_this_gpu_and_version_is_found_among_others(bundle: Bundle) -> None:
    build(bundle, "of another GPU", compute_capability="sm110")
    build(bundle, "of another version", version="10.3.0.30")
    build(bundle, "the right one", age=60)
    build(bundle, "too old", age=120)
    engine = open_tensorrt(bundle, "jetson", machine=Board().machine())
    assert engine.spec.max_context == bundle.manifest.model.max_context
    assert engine.spec.source_fp == bundle.manifest.fingerprints.source_fp


def test_an_engine_beside_its_bundle_is_found_too(bundle: Bundle) -> None:
    directory = bundle.path / "engines" / "orin"
    write_fake_engine(bundle, directory, FakeBuild())
    try:
        assert open_tensorrt(bundle, "jetson", machine=Board().machine()).spec.kv_dtype == "float16"
    finally:
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
        directory.parent.rmdir()


def test_a_damaged_engine_does_not_hide_a_whole_one(bundle: Bundle) -> None:
    build(bundle, "whole", age=60)
    (build(bundle, "damaged") / ENGINE_NAME).write_bytes(b"{")
    assert open_tensorrt(bundle, "jetson", machine=Board().machine()).spec.max_tree == 64


def test_a_bundle_for_cpus_is_told_from_one_for_tensorrt(tiny_bundles: dict[str, Bundle]) -> None:
    assert "has a graph for ONNX Runtime: --device jetson needs a bundle of `starsd-edge export MODEL --runtime" in (
        refusal(tiny_bundles["fp32"])
    )


@pytest.mark.parametrize("device", ["jetson", "cuda"])
def test_without_a_driver_nothing_else_is_asked(bundle: Bundle, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER_LIBRARY", "libcuda.so.is-not-there")
    build(bundle)
    with pytest.raises(EngineError, match=f"^--device {device}: there is no NVIDIA driver on this machine"):
        open_engine(bundle, device)


@pytest.mark.parametrize(
    ("board", "device", "says"),
    [
        (
            Board({}),
            "jetson",
            "--device jetson needs the Python module tensorrt, which is not installed: it comes with",
        ),
        (Board({"tensorrt": "8.6.1.6"}), "jetson", "tensorrt 8.6.1.6 is too old"),
        (Board(has_cuda_python=False), "jetson", r"cuda-python, which is not installed: pip install '.[jets"),
        (Board(has_cuda_python=False), "cuda", r"cuda-python, which is not installed: pip install '.[tenso"),
        (
            Board(device=FakeDevice(DeviceTraits(has_driver=False))),
            "jetson",
            "cuda-python is made for a newer CUDA (12.6) than this machine's NVIDIA driver: pip uninstall",
        ),
        (
            Board(device=FakeDevice(DeviceTraits(runtime=12090))),
            "jetson",
            "a newer CUDA (12.9) than this machine's NVIDIA driver, which is of CUDA 12.6: pip uninstall -y "
            "cuda-bindings cuda-python, then pip install 'cuda-python>=12.6.1,<12.7'",
        ),
    ],
)
def test_what_is_missing_is_named(bundle: Bundle, board: Board, device: str, says: str) -> None:
    build(bundle)
    assert says in refusal(bundle, board, device)


def test_no_engine_at_all_names_the_command_that_builds_one(bundle: Bundle) -> None:
    assert f"`starsd-edge export {bundle.path} --engine tensorrt` builds one" in refusal(bundle)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"compute_capability": "sm110"}, "another kind of GPU (sm110; here it is sm87)"),
        ({"version": "10.16.2.9"}, "another version of tensorrt (10.16.2.9; here it is 10.16.2.10)"),
        ({"library": "tensorrt_rtx", "version": "1.7.1.116"}, "another kind of library (tensorrt_rtx; here it is tens"),
    ],
)
def test_an_engine_for_another_machine_is_refused_unopened(bundle: Bundle, kind: dict[str, Any], says: str) -> None:
    build(bundle, **kind)
    line = refusal(bundle)
    assert says in line
    assert line.endswith(f"build it again with `starsd-edge export {bundle.manifest.name} --engine tensorrt`")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            lambda old: {"limits": replace(old.limits, max_context=4096)},
            "limits.max_context: 4096, and the bundle allo",
        ),
        (lambda old: {"limits": replace(old.limits, max_tree=65)}, "limits.max_tree: 65"),
        (lambda old: {"limits": replace(old.limits, max_chunk=5000)}, "limits.max_chunk: 5000"),
        (lambda old: {"profiles": ["prefill", "token"]}, "profiles: none for verify"),
        (lambda old: {"kv_strategy": "append"}, "kv_strategy: append, and the graph has inplace"),
        (lambda old: {"aliases": {}}, "aliases: not every cache goes out where it came in"),
        (lambda old: {"tensors": old.tensors[1:]}, "tensors: input_ids is missing"),
        (lambda old: {"tensors": [*old.tensors, replace(old.tensors[0], name="more")]}, "the graph knows no more"),
        (
            lambda old: {"tensors": [replace(old.tensors[0], dtype="int32"), *old.tensors[1:]]},
            "input_ids is int32 [-1] and not int64 [-1]",
        ),
        (
            lambda old: {"tensors": [tensor for tensor in old.tensors if tensor.name != "top_ids"]},
            "tensors: top_logits is there without top_ids",
        ),
        (lambda old: {"graph_digest": "0-0"}, "was built from another graph"),
        (lambda old: {"plan_bytes": 7}, "and not the 7 that were built"),
        (lambda old: {"plan_sha256": "0"}, "its sha256 differs"),
    ],
)
def test_a_manifest_that_does_not_go_with_the_bundle_names_the_field(bundle: Bundle, fields: Any, says: str) -> None:
    directory = build(bundle)
    old = msgspec.json.decode((directory / ENGINE_NAME).read_bytes(), type=EngineManifest)
    change(directory, **fields(old))
    line = refusal(bundle)
    assert says in line
    assert "build it again with `starsd-edge export" in line


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (lambda plan: {"aliases": {}}, "does not write present_k_0 where past_k_0 lies"),
        (lambda plan: {"profiles": plan.profiles[:2]}, "has 2 profiles, unlike its manifest (3)"),
        (lambda plan: {"tensors": plan.tensors[1:]}, "has no tensor input_ids, unlike its manifest"),
        (
            lambda plan: {"tensors": [replace(plan.tensors[0], dtype="INT32"), *plan.tensors[1:]]},
            "has another tensor input_ids than its manifest",
        ),
    ],
)
def test_a_plan_that_is_not_what_its_manifest_says_is_refused(bundle: Bundle, fields: Any, says: str) -> None:
    directory = build(bundle)
    file = directory / PLAN_NAME
    plan = decode_plan(file.read_bytes())
    file.write_bytes(encode_plan(replace(plan, **fields(plan))))
    change(directory, plan_bytes=file.stat().st_size, plan_sha256=sha256_file(file))
    assert says in refusal(bundle)


def test_a_tensor_that_has_to_lie_on_the_host_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def location(engine: ICudaEngine, name: str) -> TensorLocation:
        return TensorLocation.HOST if name == "logits_idx" else TensorLocation.DEVICE

    monkeypatch.setattr(ICudaEngine, "get_tensor_location", location)
    build(bundle)
    assert "wants logits_idx in the host's memory" in refusal(bundle)


def test_what_the_library_says_of_a_plan_is_passed_on(bundle: Bundle) -> None:
    directory = build(bundle)
    file = directory / PLAN_NAME
    file.write_bytes(b"nonsense")
    change(directory, plan_bytes=file.stat().st_size, plan_sha256=sha256_file(file))
    line = refusal(bundle)
    assert line.startswith(f"tensorrt 10.16.2.10 cannot open {file}: Error Code 1: Serialization")
    assert line.endswith(f"or build it again with `starsd-edge export {bundle.manifest.name} --engine tensorrt`")


@pytest.mark.parametrize(
    ("installed", "built"), [("tensorrt", "10.16.2.10"), ("tensorrt_rtx", "1.7.1.116"), ("tensorrt_rtx", "1.4.0.76")]
)
def test_a_desktop_gpu_takes_the_engine_that_there_is(bundle: Bundle, installed: str, built: str) -> None:
    build(bundle, library=installed, version=built)
    board = Board({installed: built})
    assert open_tensorrt(bundle, "cuda", machine=board.machine()).spec.max_tree == 64
    assert board.device.faults.notes == []


@pytest.mark.parametrize("other", [{"compute_capability": "sm110"}, {"version": "10.3.0.30"}])
def test_an_engine_of_another_library_for_another_gpu_does_not_hide_the_one_that_fits(
    bundle: Bundle, other: dict[str, Any]
) -> None:
    build(bundle, "of a Jetson", **other)
    build(bundle, "of this GPU", library="tensorrt_rtx", version="1.7.1.116")
    libraries = {"tensorrt_rtx": "1.7.1.116"} | ({"tensorrt": "10.16.2.10"} if "version" in other else {})
    assert open_tensorrt(bundle, "cuda", machine=Board(libraries).machine()).spec.max_tree == 64


@pytest.mark.parametrize("is_integrated", [True, False])
def test_an_engine_of_a_graph_that_gives_logits_alone_gives_them(bundle: Bundle, is_integrated: bool) -> None:
    directory = build(bundle)
    file = directory / PLAN_NAME
    plan = decode_plan(file.read_bytes())
    file.write_bytes(encode_plan(replace(plan, tensors=[t for t in plan.tensors if t.name not in TOP_OUTPUTS])))
    old = msgspec.json.decode((directory / ENGINE_NAME).read_bytes(), type=EngineManifest)
    tensors = [tensor for tensor in old.tensors if tensor.name not in TOP_OUTPUTS]
    change(directory, tensors=tensors, plan_bytes=file.stat().st_size, plan_sha256=sha256_file(file))
    board = Board(device=FakeDevice(DeviceTraits(is_integrated=is_integrated)))
    steps = []
    for engine in (open_tensorrt(bundle, "jetson", machine=board.machine()), open_engine(bundle, threads=1)):
        steps.append(engine.forward(engine.open(8), np.array([5, 9, 17]), np.arange(3), causal_mask(3)))
    assert steps[0].top is None
    assert steps[0].rows == 3
    assert np.array_equal(steps[0].logits, steps[1].logits)
    assert board.device.faults.notes == []
