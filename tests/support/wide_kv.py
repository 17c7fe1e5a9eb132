"""The fp32-KV twin of an exported bundle, without another export.

The exporter casts K and V to the KV dtype where they leave the layer and back where attention reads them, and does
nothing else with it. So the graph with float32 KV is the float16 graph with these casts made idle, on the same weights.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import onnx

from starsd_edge.bundles.bundle import Bundle

_KEPT = "features"
"""Float16 in every graph."""


def with_float32_kv(bundle: Bundle, place: Path) -> Bundle:
    """A bundle directory at `place` (on the same disk: the weights are linked, not copied)."""
    graph = bundle.manifest.graph
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for file in bundle.path.iterdir():
        if file.name != graph.file:
            os.link(file, place / file.name)
    model = onnx.load(bundle.path / graph.file, load_external_data=False)
    _widen(model.graph)
    onnx.save(model, place / graph.file)
    return Bundle(
        place, msgspec.structs.replace(bundle.manifest, graph=msgspec.structs.replace(graph, kv_dtype="float32"))
    )


def _widen(graph: onnx.GraphProto) -> None:
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert not [tensor.name for tensor in graph.initializer if tensor.data_type == half]
    for node in graph.node:
        if node.op_type == "Cast" and _KEPT not in node.output:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == half:
                    attribute.i = single
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name != _KEPT and value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = single
