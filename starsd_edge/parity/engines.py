"""What can be said of an engine without running it, and whether this machine can."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    EngineHost,
    EngineManifest,
    graph_digest,
    is_engine_of,
    read_engine_manifest,
    rebuild_command,
    require_fit,
    require_plan,
)
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError
from starsd_edge.parity.findings import Check, differs, ok

Agreement = Callable[[Path, EngineManifest, Manifest], None]
"""Raises EngineError where an engine's manifest is not one of an engine of this graph."""


def find_engines(bundle: Bundle, kept: Path) -> list[Path]:
    """Directories of engines of a bundle: inside it, and among those that are kept on this machine.

    Args:
        kept: where `export` puts engines.
    """
    inside = [file.parent for file in sorted(bundle.path.rglob(ENGINE_NAME))]
    return [*inside, *(file.parent for file in sorted(kept.glob(f"*/{ENGINE_NAME}")) if _is_of(file.parent, bundle))]


def check_engine(directory: Path, engine: EngineManifest, manifest: Manifest, agree: Agreement) -> list[Check]:
    """All of an engine that can be checked on any machine."""
    limits = engine.limits
    sizes = f"{limits.max_context} tokens, trees of {limits.max_tree}"
    about = f"{_library(engine)} for {engine.compute_capability}, {sizes}"
    built_from = _check_graph(directory, engine, manifest, agree)
    return [ok("manifest", about), built_from, _check_plan(directory, engine)]


def check_fit(directory: Path, engine: EngineManifest, host: EngineHost, manifest: Manifest) -> Check:
    """Whether it runs on a machine."""
    try:
        require_fit(directory, engine, host, manifest)
    except EngineError as error:
        return differs("machine", str(error))
    return ok("machine", f"{_library(engine)} on {host.compute_capability}, as it was built for")


def _check_graph(directory: Path, engine: EngineManifest, manifest: Manifest, agree: Agreement) -> Check:
    if engine.graph_digest != graph_digest(manifest):
        again = f"build it again with `{rebuild_command(engine)}`"
        return differs("graph", f"the engine at {directory} was built from another graph", again)
    try:
        agree(directory, engine, manifest)
    except EngineError as error:
        return differs("graph", str(error))
    return ok("graph", f"it was built from this graph, whose {len(engine.tensors)} tensors it has")


def _check_plan(directory: Path, engine: EngineManifest) -> Check:
    try:
        plan = require_plan(directory, engine)
    except EngineError as error:
        return differs("plan", str(error))
    return ok("plan", f"{plan.name} is what was built, {engine.plan_bytes / 1e6:,.0f} MB")


def _is_of(directory: Path, bundle: Bundle) -> bool:
    manifest = bundle.manifest
    try:
        engine = read_engine_manifest(directory)
    except EngineError:  # a damaged one is shown by its name
        pattern = rf"{re.escape(manifest.name)}-tensorrt(-rtx)?-sm\d+-[0-9a-f]+"
        return re.fullmatch(pattern, directory.name) is not None
    return is_engine_of(engine, manifest)


def _library(engine: EngineManifest) -> str:
    return f"{'TensorRT-RTX' if engine.library == 'tensorrt_rtx' else 'TensorRT'} {engine.version}"
