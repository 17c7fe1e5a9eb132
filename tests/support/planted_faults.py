"""Faults put into a copy of a bundle: its digests are made right again, so that only what it computes is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from starsd_edge.bundles.bundle import TARGET_KIND, Bundle, read_manifest, write_manifest
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    PLAN_NAME,
    EngineLimits,
    EngineManifest,
    graph_digest,
    platform_name,
)
from starsd_edge.bundles.integrity import hash_files, sha256_file
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.runtime.tensorrt.plan import graph_tensors

PLAN = bytes(range(256)) * 16


def copied(bundle: Bundle, place: Path) -> Path:
    """The bundle at another place."""
    return Path(shutil.copytree(bundle.path, place))


def sign(path: Path, **changes: Any) -> None:
    """Give a bundle the digests of the files that it has now, as who meddles with it can."""
    manifest = load_bundle_loosely(path).manifest
    (path / "manifest.json").unlink()
    write_manifest(path, msgspec.structs.replace(manifest, files=hash_files(path), **changes))


def load_bundle_loosely(path: Path) -> Bundle:
    """Without a look at its files."""
    return Bundle(path, read_manifest(path, Manifest, TARGET_KIND))


def perturb_weight(path: Path, factor: float = -8.0) -> None:
    """Change the largest weight of the first matrix, and sign."""

    def change(model: onnx.ModelProto) -> None:
        kinds = ("MatMul", "Gemm", "DequantizeLinear")
        nodes = [node for node in model.graph.node if node.op_type in kinds]
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        tensor = next(stored[each] for node in nodes for each in node.input if each in stored)
        array = numpy_helper.to_array(tensor).copy()
        flat = array.reshape(-1)
        largest = int(np.abs(flat.astype(np.float32)).argmax())
        flat[largest] = flat[largest] * factor if array.dtype.kind == "f" else 0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    _rewrite(path, change)


def swap_layers(path: Path, parts: tuple[str, ...] = ("past", "new", "present")) -> None:
    """Give the caches of two layers each other's numbers, and sign.

    Args:
        parts: kinds of inputs and outputs; with all of them the graph stays at one with itself.
    """

    def change(model: onnx.ModelProto) -> None:
        other = {f"{part}_{kind}_0": f"{part}_{kind}_1" for part in parts for kind in "kv"}
        other |= {new: old for old, new in other.items()}
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [other.get(each, each) for each in names]

    _rewrite(path, change)


def change_tokenizer(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter tokenizer.json, and sign."""
    file = path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    sign(path)


def write_engine(place: Path, bundle: Bundle, **changes: Any) -> Path:
    """The directory of an engine of this bundle for a GPU of sm87, its plan a few bytes that no library takes."""
    place.mkdir(parents=True)
    (place / PLAN_NAME).write_bytes(PLAN)
    manifest = bundle.manifest
    graph, model = manifest.graph, manifest.model
    layers = range(model.n_layers)
    is_inplace = graph.kv_strategy == "inplace"
    engine = EngineManifest(
        schema_version=1,
        bundle=manifest.name,
        graph_digest=graph_digest(manifest),
        library="tensorrt",
        version="10.3.0.30",
        compute_capability="sm87",
        platform=platform_name(),
        weights=graph.weights,
        kv_strategy=graph.kv_strategy,
        limits=EngineLimits(model.max_context, graph.max_tree, graph.max_chunk),
        profiles=["prefill", "token", "verify"],
        tensors=list(graph_tensors(manifest)),
        aliases={f"present_{kind}_{layer}": f"past_{kind}_{layer}" for layer in layers for kind in "kv"}
        if is_inplace
        else {},
        plan_bytes=len(PLAN),
        plan_sha256=sha256_file(place / PLAN_NAME),
        created_by="the tests",
        build_seconds=1.0,
        build_memory_bytes=1 << 20,
    )
    (place / ENGINE_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(engine, **changes)))
    return place


def _rewrite(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    graph = load_bundle_loosely(path).manifest.graph
    model = onnx.load(path / graph.file)
    change(model)
    for name in (graph.file, graph.weights_file):
        (path / name).unlink()
    onnx.save(model, path / graph.file, save_as_external_data=True, location=graph.weights_file)
    sign(path)
