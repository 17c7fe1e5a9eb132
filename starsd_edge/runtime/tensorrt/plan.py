"""A deserialised plan: the library's objects, kept together, and held to what the engine's manifest says of them.

TensorRT's Python objects do not own what they were made with, so all of them are kept here. Where it cannot do
something it says so in its log and returns None or False; `Plan.require` turns that into an error.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starsd_edge.bundles.engine_manifest import EngineManifest, EngineTensor, rebuild_command
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.tensorrt_library import make_log, tensor_dtype
from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda_caches import KvShape

_KEPT_MESSAGES = 8


class Plan:
    """An engine of TensorRT or TensorRT-RTX.

    Attributes:
        trt: the module.
        engine: its `ICudaEngine`.
        manifest: what was built.
    """

    def __init__(self, trt: Any, file: Path, manifest: EngineManifest) -> None:
        """Args:
        trt: the module `tensorrt` or `tensorrt_rtx`.
        file: the plan, checked against its manifest.
        manifest: the engine's, found to fit this machine.

        Raises:
            EngineError: the library does not take the plan, or it is not what the manifest says.
        """
        self.trt, self.manifest = trt, manifest
        self._log = make_log(trt, _KEPT_MESSAGES)
        self._runtime = trt.Runtime(self._log)
        # Mapped, not read: where processor and GPU share their memory, a copy would count twice.
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            self.engine = self._runtime.deserialize_cuda_engine(plan)
        self.require(self.engine is not None, f"open {file}")
        for difference in self._differences():
            raise EngineError(f"{file} {difference}: build it again with `{rebuild_command(manifest)}`")

    def require(self, done: bool, what: str) -> None:
        """Raises EngineError, with what the library has logged, unless `done`."""
        if not done:
            said = "; ".join(dict.fromkeys(self._log.errors)) or "it does not say why"
            self._log.errors.clear()
            raise EngineError(
                f"{self.manifest.library} {self.manifest.version} cannot {what}: {said}; close other programs that use "
                f"the GPU, or build it again with `{rebuild_command(self.manifest)}`"
            )

    def names(self, mode: str) -> list[str]:
        """Of its inputs, or of its outputs."""
        return [tensor.name for tensor in self.manifest.tensors if tensor.mode == mode]

    def _differences(self) -> Iterator[str]:
        """How the engine is not what its manifest says."""
        engine, manifest = self.engine, self.manifest
        found = {tensor.name: tensor for tensor in map(self._tensor, range(engine.num_io_tensors))}
        for name in sorted(found.keys() ^ {tensor.name for tensor in manifest.tensors}):
            yield f"has {'a' if name in found else 'no'} tensor {name}, unlike its manifest"
            return
        for tensor in manifest.tensors:
            if not _agree(found[tensor.name], tensor):
                yield f"has another tensor {tensor.name} than its manifest"
            if engine.get_tensor_location(tensor.name) != self.trt.TensorLocation.DEVICE:
                yield f"wants {tensor.name} in the host's memory"
        if engine.num_optimization_profiles != len(manifest.profiles):
            yield f"has {engine.num_optimization_profiles} profiles, unlike its manifest ({len(manifest.profiles)})"
        if hasattr(engine, "get_aliased_input_tensor"):  # from TensorRT 10.15 on
            for output, place in manifest.aliases.items():
                if engine.get_aliased_input_tensor(output) != place:
                    yield f"does not write {output} where {place} lies"

    def _tensor(self, index: int) -> EngineTensor:
        engine = self.engine
        name = engine.get_tensor_name(index)
        return EngineTensor(
            name=name,
            mode="input" if engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT else "output",
            dtype=tensor_dtype(engine.get_tensor_dtype(name)),
            shape=[int(size) for size in engine.get_tensor_shape(name)],
        )


def _agree(found: EngineTensor, stated: EngineTensor) -> bool:
    """Whether two descriptions are of one tensor; either may leave open what a pass chooses."""
    if (found.mode, found.dtype, len(found.shape)) != (stated.mode, stated.dtype, len(stated.shape)):
        return False
    return all(a == b or -1 in (a, b) for a, b in zip(found.shape, stated.shape, strict=True))


PROFILES = ("prefill", "token", "verify")
_FREE = -1
TOP_TENSORS = (
    EngineTensor("top_ids", "output", "int64", [_FREE, 2]),
    EngineTensor("top_logits", "output", "float32", [_FREE, 2]),
)
"""What graphs may give beside that, both or neither: the two highest logits of every row."""


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
    ids, logits = (tensor.name for tensor in TOP_TENSORS)
    if (ids in found) != (logits in found):
        there, missing = (ids, logits) if ids in found else (logits, ids)
        yield "tensors", f"{there} is there without {missing}"


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
