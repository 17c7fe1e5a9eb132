"""Which engine is opened, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.device import gpus
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime import onnx_cuda_engine as onnx_cuda
from starsd_edge.runtime import onnx_engine
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import OnnxEngine, OnnxInplaceEngine


def test_a_gpu_without_a_driver_is_one_line(tiny_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER_LIBRARY", "libcuda.so.is-not-there")
    with pytest.raises(EngineError, match="--device cuda: there is no NVIDIA driver on this machine") as caught:
        open_engine(tiny_bundles["fp32"], "cuda")
    assert "\n" not in str(caught.value)


def test_an_onnxruntime_for_cpus_is_told_from_one_for_gpus(
    tiny_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_cuda, "cuda_devices", list)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_engine.CPU_PROVIDER])
    with pytest.raises(UsageError, match=r"onnxruntime is for CPUs: .*pip install '\.\[cuda\]'"):
        open_engine(tiny_bundles["fp32"], "cuda")


def test_a_silent_fall_back_to_the_cpu_is_no_gpu_engine(
    tiny_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What onnxruntime-gpu lists without the libraries that it needs; here, it is true to the letter.
    monkeypatch.setattr(onnx_cuda, "cuda_devices", list)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_cuda.PROVIDER])
    with pytest.warns(UserWarning, match="not in available"), pytest.raises(EngineError, match="would run on the CPU"):
        open_engine(tiny_bundles["fp32"], "cuda")


class _OnGpu:
    """What a session on a GPU says of itself."""

    def __init__(self, session: Any) -> None:
        self.get_provider_graph_assignment_info = session.get_provider_graph_assignment_info

    def get_providers(self) -> list[str]:
        return [onnx_cuda.PROVIDER, onnx_engine.CPU_PROVIDER]


def test_parts_of_a_graph_that_stay_on_the_cpu_are_named(tiny_bundles: dict[str, Bundle]) -> None:
    bundle = tiny_bundles["int8"]
    file = bundle.path / bundle.manifest.graph.file
    with pytest.warns(UserWarning, match="not in available"):
        session = onnx_engine.open_session(file, provider=onnx_cuda.PROVIDER)
    if not hasattr(session, "get_provider_graph_assignment_info"):
        pytest.skip("not run: this ONNX Runtime (below 1.24, the newest for Python 3.10) keeps no such record")
    with pytest.raises(EngineError, match=r"leaves parts of this graph on the CPU \(\d+ MatMul, \d+ MatMulNBits"):
        onnx_cuda.require_gpu(_OnGpu(session))  # type: ignore[arg-type]


class _Old:
    """A session of an ONNX Runtime that keeps no record."""

    def get_providers(self) -> list[str]:
        return [onnx_cuda.PROVIDER]


def test_a_session_that_does_not_say_where_parts_of_it_run_is_used_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python 3.10 has no newer onnxruntime-gpu than 1.23."""
    onnx_cuda.require_gpu(_Old())  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "1.24, which needs Python 3.11" in caplog.text


def test_libraries_of_cuda_are_loaded_before_the_session_and_products_are_whole(
    tiny_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What ONNX Runtime prints about them goes into the error, and not to where answers are printed."""
    order: list[Any] = []
    real = onnxruntime.InferenceSession

    def preload(**options: Any) -> None:
        order.append("libraries")
        print("Failed to load\nlibcudnn.so.9: no such file")

    def session(file: str, options: Any, providers: list[Any]) -> Any:
        order.append(providers)
        return real(file, options, providers=[onnx_engine.CPU_PROVIDER])

    monkeypatch.setattr(onnx_cuda, "cuda_devices", list)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_cuda.PROVIDER])
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    with pytest.raises(EngineError, match=r"on the CPU \(Failed to load libcudnn\.so\.9: no such file\): pip install"):
        open_engine(tiny_bundles["fp32"], "cuda")
    assert order == ["libraries", [(onnx_cuda.PROVIDER, {"use_tf32": "0"}), onnx_engine.CPU_PROVIDER]]
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        open_engine(tiny_bundles["fp32"], "cuda")


def test_a_jetson_runs_engines_of_tensorrt_alone(tiny_bundles: dict[str, Bundle]) -> None:
    with pytest.raises(UsageError, match=r"--device jetson needs a bundle of .*--runtime tensorrt"):
        open_engine(tiny_bundles["fp32"], "jetson")


def test_an_unknown_device_is_refused(tiny_bundles: dict[str, Bundle]) -> None:
    with pytest.raises(UsageError, match="no device 'abacus'"):
        open_engine(tiny_bundles["fp32"], "abacus")


def test_a_damaged_graph_is_one_line(tiny_bundles: dict[str, Bundle], empty_directory: Path) -> None:
    copy = empty_directory / "bundle"
    shutil.copytree(tiny_bundles["fp32"].path, copy)
    (copy / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(EngineError, match="export the bundle again") as caught:
        open_engine(Bundle(copy, tiny_bundles["fp32"].manifest))
    assert "\n" not in str(caught.value)


class _Failing:
    """A session whose graph this ONNX Runtime loads and cannot run."""

    def run(self, *arguments: object) -> None:
        raise RuntimeError("node 7:\ndimension mismatch")


def test_a_graph_that_cannot_be_run_is_one_line(tiny_bundles: dict[str, Bundle]) -> None:
    engine = OnnxEngine(_Failing(), tiny_bundles["fp32"].manifest)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="cannot run the graph: node 7: dimension mismatch; export the bundle again"):
        engine.forward(engine.open(4), np.array([1]), np.array([0]), causal_mask(1))


@pytest.mark.parametrize("capacity", [None, 0, 8])
def test_a_graph_whose_caches_hold_nothing_is_refused(tiny_bundles: dict[str, Bundle], capacity: int | None) -> None:
    manifest = tiny_bundles["fp32"].manifest
    caches = None if capacity is None else TensorrtGraph(head="fp16", block=0, capacity=capacity)
    graph = replace(manifest.graph, kv_strategy="inplace", max_tree=8, tensorrt=caches)
    with pytest.raises(EngineError, match=r"no caches .*export the bundle again"):
        OnnxInplaceEngine(_Failing(), replace(manifest, graph=graph))  # type: ignore[arg-type]


def test_coarse_weights_ask_for_chains_unless_told_otherwise(tiny_bundles: dict[str, Bundle]) -> None:
    assert open_engine(tiny_bundles["fp32"]).spec.exact_trees
    assert not open_engine(tiny_bundles["int8"]).spec.exact_trees
    assert open_engine(tiny_bundles["int8"], allow_inexact=True).spec.exact_trees
