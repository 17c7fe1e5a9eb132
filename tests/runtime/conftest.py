"""Every engine that the contract suite is run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from starsd_edge.bench.replay_engine import ReplayEngine
from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import CACHE_VARIABLE
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from tests.support.prefix_engine import PrefixEngine
from tests.support.tiny_bundles import KINDS
from tests.support.traces import letter_source, letter_trace

if TYPE_CHECKING:
    from tests.support.tiny_eagle3 import TinyEagle3
    from tests.support.tiny_tensorrt import OnFake

CONTEXT = 512
FUSED, FUSED_INT8 = "fused features", "fused features, int8"
TORCH, TORCH_FUSED = "torch", "torch, fused features"
TENSORRT = {f"TensorRT (fake), {strategy}": strategy for strategy in ("append", "inplace")}
GRAPHS = {f"graph for TensorRT, {strategy}": strategy for strategy in ("append", "inplace")}
ON_GPU = {f"TensorRT on this GPU, {strategy}": strategy for strategy in ("append", "inplace")}
_WITH_GPU = [pytest.param(name, marks=[pytest.mark.gpu, pytest.mark.export]) for name in ON_GPU]
_WITH_TORCH = [
    pytest.param(name, marks=pytest.mark.export) for name in (TORCH, TORCH_FUSED, FUSED, FUSED_INT8, *GRAPHS, *TENSORRT)
]
ENGINES = [*KINDS, *_WITH_TORCH, *_WITH_GPU, "prefix", "replay"]


@pytest.fixture(scope="session")
def on_fakes() -> Iterator[list[OnFake]]:
    """Engines on devices that are none: of the right use that the suite makes of them, nothing may be refused."""
    opened: list[OnFake] = []
    yield opened
    for on_fake in opened:
        on_fake.require_no_refusal()


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Each engine in turn."""
    name = request.param
    if name == "prefix":
        return PrefixEngine(max_context=CONTEXT, feature_width=4)
    if name == "replay":
        return ReplayEngine([letter_trace()], letter_source(CONTEXT))
    if name in (FUSED, FUSED_INT8, TORCH_FUSED):
        tiny = request.getfixturevalue("tiny_eagle3")
        exported = open_engine(tiny.target_int8 if name == FUSED_INT8 else tiny.target, threads=1)
        return _torch_engine(exported, tiny) if name == TORCH_FUSED else exported
    if name in GRAPHS:
        return open_engine(request.getfixturevalue("tiny_tensorrt")[GRAPHS[name]], threads=1)
    if name in ON_GPU:
        return _gpu_engine(request.getfixturevalue("tiny_tensorrt")[ON_GPU[name]], tmp_path_factory.mktemp("gpu"))
    if name in TENSORRT:
        from tests.support.tiny_tensorrt import OnFake

        bundle = request.getfixturevalue("tiny_tensorrt")[TENSORRT[name]]
        on_fake = OnFake(bundle, tmp_path_factory.mktemp("engine") / "fake")
        request.getfixturevalue("on_fakes").append(on_fake)
        return on_fake.engine
    bundles = request.getfixturevalue("tiny_bundles")
    if name == TORCH:
        return _torch_engine(open_engine(bundles["fp32"]))
    return open_engine(bundles[name], threads=1)


def _gpu_engine(bundle: Bundle, cache: Path) -> Engine:
    """Built and run on this machine, by TensorRT where it is installed, else by TensorRT-RTX."""
    from starsd_edge.runtime.tensorrt.opening import open_tensorrt
    from starsd_export.engines.engine_export import EngineOptions, export_engine

    kind = "tensorrt" if importlib.util.find_spec("tensorrt") else "tensorrt-rtx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        export_engine(bundle, EngineOptions(kind))
        return open_tensorrt(bundle, "cuda")


def _torch_engine(like: Engine, fused: TinyEagle3 | None = None) -> Engine:
    """A tiny model under torch, that of an EAGLE-3 head where one is given."""
    from starsd_edge.runtime.torch_model import TargetGraph
    from starsd_export.draft_heads.fitting import features_for
    from tests.support.tiny_eagle3 import target_model
    from tests.support.tiny_llama import tiny_model
    from tests.support.torch_engine import TorchEngine

    if fused is None:
        return TorchEngine(TargetGraph(tiny_model()), like.spec)
    model = target_model()
    return TorchEngine(TargetGraph(model, features_for(fused.head, model.config).fused), like.spec)


@pytest.fixture
def is_exact(request: pytest.FixtureRequest, engine: Engine) -> bool:
    """torch is the reference of values, not of bits: its kernels depend on the number of rows, as do ONNX Runtime's for
    the operators of `inplace`.
    """
    name = request.node.callspec.params["engine"]
    return name not in (TORCH, TORCH_FUSED, *ON_GPU) and (TENSORRT | GRAPHS).get(name) != "inplace"


@pytest.fixture
def empty_directory(tmp_path: Path) -> Path:
    """A place for what a test writes."""
    return tmp_path
