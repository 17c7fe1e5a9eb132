"""Which engine is opened, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.onnx_engine import OnnxEngine
from starsd_edge.runtime.onnx_inplace import OnnxInplaceEngine


@pytest.mark.parametrize("device", ["cuda", "jetson"])
def test_devices_of_a_later_version_say_so(tiny_bundles: dict[str, Bundle], device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device} comes with a later version"):
        open_engine(tiny_bundles["fp32"], device)


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
