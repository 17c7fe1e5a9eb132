"""The manifest of an engine that was never built, for tests of what surrounds one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from starsd_edge.bundles.engine_manifest import ENGINE_NAME, EngineHost, EngineLimits, EngineManifest, graph_digest
from starsd_edge.bundles.manifest import Manifest


def small_engine(manifest: Manifest, host: EngineHost) -> EngineManifest:
    """Of a bundle, as it would have been built there."""
    return EngineManifest(
        schema_version=1,
        bundle=manifest.name,
        graph_digest=graph_digest(manifest),
        library=host.library,  # type: ignore[arg-type]
        version=host.version,
        compute_capability=host.compute_capability,
        platform=host.platform,
        weights=manifest.graph.weights,
        kv_strategy=manifest.graph.kv_strategy,
        limits=EngineLimits(max_context=32, max_tree=16, max_chunk=16),
        profiles=["prefill", "token", "verify"],
        tensors=[],
        aliases={},
        plan_bytes=1,
        plan_sha256="0" * 64,
        created_by="the tests",
        build_seconds=1.0,
        build_memory_bytes=1,
    )


def write_small_engine(directory: Path, engine: EngineManifest) -> Path:
    """Its directory, without a plan."""
    directory.mkdir(parents=True)
    (directory / ENGINE_NAME).write_bytes(msgspec.json.encode(engine))
    return directory
