"""What an engine has to be, to stand for its bundle's graph: told from the two manifests, before anything is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starsd_edge.bundles.engine_manifest import EngineManifest, EngineTensor, rebuild_command
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError
from starsd_jetson.tensorrt.caches import KvShape

PROFILES = ("prefill", "token", "verify")
_FREE = -1
TOP_TENSORS = (
    EngineTensor("top_ids", "output", "int64", [_FREE, 2]),
    EngineTensor("top_logits", "output", "float32", [_FREE, 2]),
)
"""What graphs may give beside that: the two highest logits of every row."""


def require_agreement(directory: Path, engine: EngineManifest, bundle: Manifest) -> None:
    """Check that an engine takes and gives what its bundle's graph does.

    Raises:
        EngineError: names the first field of the engine's manifest that does not, and the command that builds it again.
    """
    for field, difference in _differences(engine, bundle):
        raise EngineError(
            f"the engine at {directory} does not go with its bundle ({field}: {difference}): build it again with "
            f"`{rebuild_command(engine)}`"
        )


def _differences(engine: EngineManifest, bundle: Manifest) -> Iterator[tuple[str, str]]:
    graph, limits = bundle.graph, engine.limits
    if engine.kv_strategy != graph.kv_strategy:
        yield "kv_strategy", f"{engine.kv_strategy}, and the graph has {graph.kv_strategy}"
    for name in PROFILES:
        if name not in engine.profiles:
            yield "profiles", f"none for {name}"
    for name, most in (
        ("max_context", bundle.model.max_context),
        ("max_tree", graph.max_tree),
        ("max_chunk", graph.max_chunk),
    ):
        if getattr(limits, name) > most:
            yield f"limits.{name}", f"{getattr(limits, name)}, and the bundle allows {most}"
    yield from _other_tensors(engine, bundle)
    if engine.kv_strategy == "inplace":
        places = _places(_kv(bundle))
        if engine.aliases != places:
            yield "aliases", "not every cache goes out where it came in"
        if graph.tensorrt is None or limits.max_context + limits.max_tree > graph.tensorrt.capacity:
            yield "limits", "the caches do not hold the context and a tree"


def _other_tensors(engine: EngineManifest, bundle: Manifest) -> Iterator[tuple[str, str]]:
    found = {tensor.name: tensor for tensor in engine.tensors}
    needed = {tensor.name: tensor for tensor in graph_tensors(bundle)}
    allowed = needed | {tensor.name: tensor for tensor in TOP_TENSORS}
    for name in needed:
        if name not in found:
            yield "tensors", f"{name} is missing"
    for name, tensor in found.items():
        expected = allowed.get(name)
        if expected is None:
            yield "tensors", f"the graph knows no {name}"
        elif tensor != expected:
            yield "tensors", f"{name} is {tensor.dtype} {tensor.shape} and not {expected.dtype} {expected.shape}"


def graph_tensors(bundle: Manifest) -> list[EngineTensor]:
    """Inputs and outputs of a bundle's graph."""
    graph, model, kv = bundle.graph, bundle.model, _kv(bundle)
    inplace = graph.kv_strategy == "inplace"
    capacity = graph.tensorrt.capacity if graph.tensorrt else 0
    cache = [1, kv.kv_heads, capacity, kv.head_dim] if inplace else [_FREE, kv.kv_heads, kv.head_dim]
    tensors = [
        EngineTensor("input_ids", "input", "int64", [_FREE]),
        EngineTensor("position_ids", "input", "int64", [_FREE]),
        EngineTensor("tree_mask", "input", "bool", [_FREE, _FREE]),
        EngineTensor("logits_idx", "input", "int64", [_FREE]),
        EngineTensor("logits", "output", "float32", [_FREE, model.vocab_size]),
        EngineTensor("features", "output", "float16", [_FREE, graph.feature_width]),
    ]
    if inplace:
        tensors.append(EngineTensor("past_len", "input", "int64", [1]))
    tensors += [EngineTensor(name, "input", graph.kv_dtype, cache) for name in kv.names("past")]
    out = kv.names("present" if inplace else "new")
    return [*tensors, *(EngineTensor(name, "output", graph.kv_dtype, cache) for name in out)]


def _kv(bundle: Manifest) -> KvShape:
    return KvShape(bundle.model.n_layers, bundle.model.n_kv_heads, bundle.model.head_dim)


def _places(kv: KvShape) -> dict[str, str]:
    return dict(zip(kv.names("present"), kv.names("past"), strict=True))
