"""Bundles of a tiny model, one of each kind, and every engine that the contract suite is run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime.engine import Engine, EngineSpec
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.torch_engine import TorchEngine
from starsd_edge.runtime.torch_model import TargetGraph
from starsd_export.pipeline import ExportOptions, export_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.tiny_llama import CONTEXT, tiny_model, write_safetensors

KINDS = {"fp32": ("fp32", "float16"), "fp32-kv32": ("fp32", "float32"), "int8": ("int8", "float16")}
ENGINES = [*KINDS, "torch", "prefix"]


@pytest.fixture(scope="session")
def tiny_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """By the names of `KINDS`."""
    root = tmp_path_factory.mktemp("tiny")
    checkpoint = write_safetensors(root / "checkpoint")
    return {
        name: export_bundle(checkpoint, root / name, ExportOptions(weights, kv_dtype))
        for name, (weights, kv_dtype) in KINDS.items()
    }


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    name = request.param
    if name == "prefix":
        return PrefixEngine(max_context=CONTEXT, feature_width=4)
    bundles = request.getfixturevalue("tiny_bundles")
    if name == "torch":
        return torch_engine(open_engine(bundles["fp32"]).spec)
    return open_engine(bundles[name], threads=1)


def torch_engine(spec: EngineSpec) -> TorchEngine:
    """The tiny model under torch."""
    return TorchEngine(TargetGraph(tiny_model()), spec)


@pytest.fixture
def empty_directory(tmp_path: Path) -> Path:
    """A place for what a test writes."""
    return tmp_path
