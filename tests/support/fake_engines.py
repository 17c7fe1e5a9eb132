"""Engines for the fake TensorRT: what `export --engine` would have written of a bundle, with a plan that ONNX Runtime
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    PLAN_NAME,
    EngineHost,
    EngineManifest,
    EngineTensor,
    graph_digest,
    platform_name,
)
from starsd_edge.bundles.integrity import sha256_file
from starsd_export.engines.profiles import PROFILES, engine_limits, profile_shapes
from starsd_jetson.tensorrt.agreement import TOP_TENSORS, graph_tensors
from tests.support.fake_plan import Plan, PlanTensor, encode_plan

ORIN = EngineHost("tensorrt", "10.16.2.10", "sm87", platform_name())
_DTYPES = {"float16": "HALF", "float32": "FLOAT", "int64": "INT64", "bool": "BOOL"}
_FIRST = {"logits_idx": "rows", "logits": "rows", "top_ids": "rows", "top_logits": "rows"}


@dataclass(frozen=True)
class FakeEngine:
    """An engine's directory."""

    path: Path
    manifest: EngineManifest


def write_fake_engine(bundle: Bundle, directory: Path, host: EngineHost = ORIN) -> FakeEngine:
    """Write an engine of a bundle that the fake TensorRT of this host runs."""
    directory.mkdir(parents=True)
    limits = engine_limits(bundle.manifest)
    graph = bundle.manifest.graph
    tensors = graph_tensors(bundle.manifest) + [tensor for tensor in TOP_TENSORS if _gives(bundle, tensor.name)]
    is_inplace = graph.kv_strategy == "inplace"
    aliases = {t.name: t.name.replace("present_", "past_") for t in tensors if t.name.startswith("present_")}
    plan = Plan(
        library=host.library,
        version=host.version,
        compute_capability=host.compute_capability,
        program=f"onnx:{bundle.path / graph.file}",
        tensors=[PlanTensor(t.name, t.mode == "input", _DTYPES[t.dtype], _named(t)) for t in tensors],
        profiles=[
            {name: tuple(map(tuple, sizes)) for name, sizes in shapes.items()}  # type: ignore[misc]
            for shapes in profile_shapes(bundle.manifest, limits)
        ],
        aliases=aliases,
    )
    file = directory / PLAN_NAME
    file.write_bytes(encode_plan(plan))
    manifest = EngineManifest(
        schema_version=1,
        bundle=bundle.manifest.name,
        graph_digest=graph_digest(bundle.manifest),
        library=host.library,  # type: ignore[arg-type]
        version=host.version,
        compute_capability=host.compute_capability,
        platform=host.platform,
        weights=graph.weights,
        kv_strategy=graph.kv_strategy,
        limits=limits,
        profiles=list(PROFILES),
        tensors=tensors,
        aliases=aliases if is_inplace else {},
        plan_bytes=file.stat().st_size,
        plan_sha256=sha256_file(file),
        created_by="a test",
        build_seconds=0.0,
        build_memory_bytes=0,
    )
    write_engine_manifest(directory, manifest)
    return FakeEngine(directory, manifest)


def write_engine_manifest(directory: Path, manifest: EngineManifest) -> None:
    """Write engine.json."""
    (directory / ENGINE_NAME).write_bytes(msgspec.json.encode(manifest))


def _gives(bundle: Bundle, output: str) -> bool:
    import onnx

    graph = onnx.load(bundle.path / bundle.manifest.graph.file, load_external_data=False).graph
    return any(value.name == output for value in graph.output)


def _named(tensor: EngineTensor) -> tuple[int | str, ...]:
    """A shape with one name for all dimensions that have to agree."""
    first = _FIRST.get(tensor.name, "past" if tensor.name.startswith("past_") else "tokens")
    return tuple(first if size == -1 else size for size in tensor.shape)
