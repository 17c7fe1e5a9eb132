"""Engines for the fake TensorRT from bundles whose graphs TensorRT would take: a directory as `export` writes it, whose
plan runs the bundle's own graph on ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnxruntime

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    PLAN_NAME,
    EngineManifest,
    EngineTensor,
    graph_digest,
    platform_name,
)
from starsd_edge.bundles.integrity import sha256_file
from starsd_edge.runtime.onnx_engine import open_session
from starsd_export.engines.profiles import PROFILES, engine_limits, profile_shapes
from tests.support.fake_plan import Plan, PlanTensor, encode_plan
from tests.support.fake_trt_types import NUMPY_TYPES, DataType

_DTYPES = {"float16": "HALF", "float": "FLOAT", "bool": "BOOL", "int64": "INT64", "int32": "INT32"}


@dataclass(frozen=True)
class FakeBuild:
    """What an engine is built for."""

    library: str = "tensorrt"
    version: str = "10.16.2.10"
    compute_capability: str = "sm87"
    context: int | None = None


def write_fake_engine(bundle: Bundle, directory: Path, build: FakeBuild | None = None) -> EngineManifest:
    """Write an engine's directory."""
    build = build or FakeBuild()
    plan = fake_plan(bundle, build)
    directory.mkdir(parents=True)
    file = directory / PLAN_NAME
    file.write_bytes(encode_plan(plan))
    manifest = EngineManifest(
        schema_version=1,
        bundle=bundle.manifest.name,
        graph_digest=graph_digest(bundle.manifest),
        library=build.library,  # type: ignore[arg-type]
        version=build.version,
        compute_capability=build.compute_capability,
        platform=platform_name(),
        weights=bundle.manifest.graph.weights,
        kv_strategy=bundle.manifest.graph.kv_strategy,
        limits=engine_limits(bundle.manifest, build.context),
        profiles=list(PROFILES),
        tensors=[_described(tensor) for tensor in plan.tensors],
        aliases=plan.aliases,
        plan_bytes=file.stat().st_size,
        plan_sha256=sha256_file(file),
        created_by="the tests",
        build_seconds=0.0,
        build_memory_bytes=0,
    )
    (directory / ENGINE_NAME).write_bytes(msgspec.json.encode(manifest))
    return manifest


def fake_plan(bundle: Bundle, build: FakeBuild) -> Plan:
    """The plan of a bundle's graph."""
    graph = bundle.manifest.graph
    file = bundle.path / graph.file
    session = open_session(file, threads=1)
    tensors = [_tensor(value, is_input=True) for value in session.get_inputs()]
    tensors += [_tensor(value, is_input=False) for value in session.get_outputs()]
    limits = engine_limits(bundle.manifest, build.context)
    profiles = [
        {name: (tuple(low), tuple(usual), tuple(high)) for name, (low, usual, high) in shapes.items()}
        for shapes in profile_shapes(bundle.manifest, limits)
    ]
    written = [tensor.name for tensor in tensors if tensor.name.startswith("present_")]
    return Plan(
        library=build.library,
        version=build.version,
        compute_capability=build.compute_capability,
        program=f"onnx:{file}",
        tensors=tensors,
        profiles=profiles,
        aliases={name: name.replace("present_", "past_", 1) for name in written},
        weight_bytes=(bundle.path / graph.weights_file).stat().st_size,
    )


def _tensor(value: onnxruntime.NodeArg, *, is_input: bool) -> PlanTensor:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return PlanTensor(value.name, is_input, _DTYPES[kind], tuple(value.shape))


def _described(tensor: PlanTensor) -> EngineTensor:
    shape = [-1 if isinstance(size, str) else size for size in tensor.shape]
    dtype = str(NUMPY_TYPES[DataType[tensor.dtype]])
    return EngineTensor(tensor.name, "input" if tensor.is_input else "output", dtype, shape)
