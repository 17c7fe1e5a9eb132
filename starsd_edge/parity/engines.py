"""What can be said of an engine without running it, and whether this machine can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    EngineHost,
    EngineManifest,
    EngineTensor,
    graph_digest,
    read_engine_manifest,
    rebuild_command,
    require_fit,
    require_plan,
)
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError
from starsd_edge.parity.findings import Check, differs, ok

_OF_PASS = {"int64": ("input_ids", "position_ids", "logits_idx", "past_len"), "bool": ("tree_mask",)}


def find_engines(bundle: Bundle, kept: Path) -> list[Path]:
    """Directories of engines of a bundle: inside it, and among those that are kept on this machine.

    Args:
        kept: where `export` puts engines.
    """
    inside = [file.parent for file in sorted(bundle.path.rglob(ENGINE_NAME))]
    return [*inside, *(file.parent for file in sorted(kept.glob(f"*/{ENGINE_NAME}")) if _is_of(file.parent, bundle))]


def check_engine(directory: Path, engine: EngineManifest, manifest: Manifest) -> list[Check]:
    """All of an engine that can be checked on any machine."""
    limits = engine.limits
    about = (
        f"{_library(engine)} for {engine.compute_capability}, up to {limits.max_context} tokens, trees of "
        f"{limits.max_tree} rows"
    )
    return [ok("manifest", about), *_check_source(directory, engine, manifest), _check_plan(directory, engine)]


def check_fit(directory: Path, engine: EngineManifest, host: EngineHost, manifest: Manifest) -> Check:
    """Whether it runs on a machine."""
    try:
        require_fit(directory, engine, host, manifest)
    except EngineError as error:
        return differs("machine", str(error))
    return ok("machine", f"{_library(engine)} on {host.compute_capability}, as it was built for")


def _check_source(directory: Path, engine: EngineManifest, manifest: Manifest) -> Iterator[Check]:
    again = f"build it again with `{rebuild_command(engine)}`"
    if engine.graph_digest != graph_digest(manifest):
        yield differs("graph", f"the engine at {directory} was built from another graph", again)
        return
    wrong = next(_contradictions(engine, manifest), None)
    if wrong is None:
        yield ok("graph", f"it was built from this graph; {len(engine.tensors)} tensors as the graph has them")
    else:
        yield differs("graph", f"the engine at {directory} {wrong}", again)


def _check_plan(directory: Path, engine: EngineManifest) -> Check:
    try:
        plan = require_plan(directory, engine)
    except EngineError as error:
        return differs("plan", str(error))
    return ok("plan", f"{plan.name} is what was built, {engine.plan_bytes / 1e6:,.0f} MB")


def _contradictions(engine: EngineManifest, manifest: Manifest) -> Iterator[str]:
    """What of an engine's manifest an engine of this graph cannot have."""
    graph, limits = manifest.graph, engine.limits
    fields = (
        ("context", limits.max_context, manifest.model.max_context),
        ("largest tree", limits.max_tree, graph.max_tree),
        ("largest chunk", limits.max_chunk, graph.max_chunk),
    )
    for name, most, allowed in fields:
        if most > allowed:
            yield f"says that its {name} is {most}, and its graph takes {allowed}"
    kinds = (("weights", engine.weights, graph.weights), ("KV strategy", engine.kv_strategy, graph.kv_strategy))
    for name, ours, theirs in kinds:
        if ours != theirs:
            yield f"says {ours} of its {name}, and its graph has {theirs}"
    found = {tensor.name: tensor for tensor in engine.tensors}
    for tensor in graph_tensors(manifest):
        if found.get(tensor.name) != tensor:
            yield f"has {'another' if tensor.name in found else 'no'} tensor {tensor.name}"
    if graph.kv_strategy == "inplace" and engine.aliases != _aliases(manifest):
        yield "does not write its caches where they lie"


def graph_tensors(manifest: Manifest) -> Iterator[EngineTensor]:
    """Inputs and outputs that every engine of a graph has."""
    model, graph = manifest.model, manifest.graph
    is_inplace = graph.kv_strategy == "inplace"
    for dtype, names in _OF_PASS.items():
        for name in names:
            if name != "past_len":
                yield EngineTensor(name, "input", dtype, [-1, -1] if dtype == "bool" else [-1])
            elif is_inplace:
                yield EngineTensor(name, "input", dtype, [1])
    yield EngineTensor("logits", "output", "float32", [-1, model.vocab_size])
    yield EngineTensor("features", "output", "float16", [-1, graph.feature_width])
    capacity = graph.tensorrt.capacity if graph.tensorrt else 0
    cache = [1, model.n_kv_heads, capacity, model.head_dim] if is_inplace else [-1, model.n_kv_heads, model.head_dim]
    for past, new in _caches(manifest):
        yield EngineTensor(past, "input", graph.kv_dtype, cache)
        yield EngineTensor(new, "output", graph.kv_dtype, cache)


def _caches(manifest: Manifest) -> Iterator[tuple[str, str]]:
    new = "present" if manifest.graph.kv_strategy == "inplace" else "new"
    for layer in range(manifest.model.n_layers):
        for kind in "kv":
            yield f"past_{kind}_{layer}", f"{new}_{kind}_{layer}"


def _aliases(manifest: Manifest) -> dict[str, str]:
    return {new: past for past, new in _caches(manifest)}


def _is_of(directory: Path, bundle: Bundle) -> bool:
    manifest = bundle.manifest
    try:
        engine = read_engine_manifest(directory)
    except EngineError:  # a damaged one is shown by its name
        pattern = rf"{re.escape(manifest.name)}-tensorrt(-rtx)?-sm\d+-[0-9a-f]+"
        return re.fullmatch(pattern, directory.name) is not None
    return engine.bundle == manifest.name or engine.graph_digest == graph_digest(manifest)


def _library(engine: EngineManifest) -> str:
    return f"{'TensorRT-RTX' if engine.library == 'tensorrt_rtx' else 'TensorRT'} {engine.version}"
