"""ONNX Runtime with its KV on a GPU, on fakes of both: what is opened, and that answers are those of the processor."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnxruntime
import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.device import gpus
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime import loading
from starsd_edge.runtime import onnx_cuda_engine as onnx_cuda
from starsd_edge.runtime.cuda import CUDA_MODULE
from starsd_edge.runtime.engine import Engine, Sequence, Step, causal_mask
from starsd_edge.runtime.onnx_cuda_engine import OnnxCudaEngine, open_onnx_cuda
from starsd_edge.runtime.onnx_engine import CPU_PROVIDER, OnnxEngine
from tests.support.fake_cudart import FakeCudart
from tests.support.fake_device import FakeDevice
from tests.support.fake_onnx_gpu import FakeGpuSession

IDS = [5, 9, 17, 3, 11, 20, 7, 2, 13, 19, 6, 15]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The GPU of this machine, which onnxruntime-gpu finds."""
    device = FakeDevice()
    monkeypatch.setattr(onnx_cuda, "cuda_devices", list)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_cuda.PROVIDER, CPU_PROVIDER])
    monkeypatch.setattr(onnx_cuda, "open_session", lambda file, provider: FakeGpuSession(file, device))
    return device


def opened(bundle: Bundle, device: FakeDevice) -> OnnxCudaEngine:
    modules: dict[str, Any] = {CUDA_MODULE: FakeCudart(device)}
    return open_onnx_cuda(bundle, load=modules.__getitem__)


def forward(engine: Engine, seq: Sequence, ids: list[int]) -> Step:
    return engine.forward(seq, np.asarray(ids), seq.length + np.arange(len(ids)), causal_mask(len(ids)))


@pytest.mark.parametrize("kind", ["fp32", "fp32-kv32", "int8"])
def test_passes_give_the_bits_of_the_processor(tiny_bundles: dict[str, Bundle], device: FakeDevice, kind: str) -> None:
    bundle = tiny_bundles[kind]
    both: list[Engine] = [opened(bundle, device), loading.open_engine(bundle, threads=1)]
    assert both[0].spec == both[1].spec
    steps = []
    for engine in both:
        seq = engine.open(64)
        mine = [forward(engine, seq, IDS)]
        engine.commit(seq, range(len(IDS)))
        for rows in ([0, 2], [0], [1, 2, 4]):
            mine.append(forward(engine, seq, [4, 8, 12, 10, 6]))
            engine.commit(seq, rows)
        engine.truncate(seq, 14)
        mine.append(forward(engine, seq, [3]))
        steps.append(mine)
    for found, expected in zip(*steps, strict=True):
        assert np.array_equal(found.logits, expected.logits)
        assert np.array_equal(found.features, expected.features)
    assert device.faults.notes == []


def test_everything_is_given_back(tiny_bundles: dict[str, Bundle], device: FakeDevice) -> None:
    engine = opened(tiny_bundles["fp32"], device)
    seq = engine.open(64)
    forward(engine, seq, IDS)
    engine.commit(seq, range(len(IDS)))
    del seq, engine
    gc.collect()
    assert device.leaks() == []


def test_the_contract_is_kept(tiny_bundles: dict[str, Bundle], device: FakeDevice) -> None:
    bundle = tiny_bundles["fp32"]
    engine, other = opened(bundle, device), loading.open_engine(bundle, threads=1)
    seq = engine.open(12)
    with pytest.raises(EngineError, match="nothing to commit"):
        engine.commit(seq, [0])
    forward(engine, seq, IDS)
    for rows in ([12], [-1]):
        with pytest.raises(EngineError, match="the last pass had 12 rows"):
            engine.commit(seq, rows)
    engine.commit(seq, range(12))
    forward(engine, seq, [3])
    with pytest.raises(EngineError, match="the sequence is full"):
        engine.commit(seq, [0])
    with pytest.raises(EngineError, match="opened by another engine"):
        forward(engine, other.open(12), [3])
    with pytest.raises(EngineError, match="does not fit a context"):
        engine.open(bundle.manifest.model.max_context + 1)


def test_cuda_python_is_asked_for(tiny_bundles: dict[str, Bundle], device: FakeDevice) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(UsageError, match=r"cuda-python, which is not installed: pip install '\.\[cuda\]'"):
        open_onnx_cuda(tiny_bundles["fp32"], load=missing)


def test_without_a_driver_the_device_is_refused(
    tiny_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DRIVER_LIBRARY", "libcuda.so.is-not-there")
    with pytest.raises(EngineError, match="--device cuda: there is no NVIDIA driver on this machine"):
        loading.open_engine(tiny_bundles["fp32"], "cuda")
    assert isinstance(loading.open_engine(tiny_bundles["fp32"], "cpu"), OnnxEngine)
