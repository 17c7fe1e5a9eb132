"""Optimisation profiles: the shapes that an engine is tuned for, from the limits that it shall keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from starsd_edge.bundles.engine_manifest import EngineLimits
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import StarsdError, UsageError

Shapes = Mapping[str, tuple[list[int], list[int], list[int]]]
"""The smallest, the usual and the largest shape of every input whose shape a pass chooses."""

PROFILES = ("prefill", "token", "verify")
_USUAL_CHUNK = 64
_USUAL_TREE = 16
_USUAL_PAST = 512


_Span = tuple[int, int, int]
"""The smallest, the usual and the largest value of one dimension."""


def engine_limits(manifest: Manifest, context: int | None = None) -> EngineLimits:
    """The limits of an engine.

    Args:
        context: committed tokens that it shall take; None takes all that the bundle allows.

    Raises:
        UsageError: more than the bundle allows, none, or another than its caches were made for.
    """
    most = manifest.model.max_context
    if manifest.graph.kv_strategy == "inplace" and context not in (None, most):
        raise UsageError(f"{manifest.name} has caches for {most} tokens: another --context needs another bundle")
    if context is not None and not 0 < context <= most:
        raise UsageError(f"--context {context} is not within 1 and {most}, the context of {manifest.name}")
    return EngineLimits(context or most, manifest.graph.max_tree, manifest.graph.max_chunk)


def profile_shapes(manifest: Manifest, limits: EngineLimits) -> list[Shapes]:
    """One entry for each of `PROFILES`: prefill chunks, one token, and verify passes up to `max_tree`.

    Every dimension of a profile comes from one span of tokens, one of committed tokens and one of rows with logits, so
    that inputs which have to agree do: the builder does not notice where they do not.
    """
    past = (0, min(_USUAL_PAST, limits.max_context), limits.max_context)
    one = (1, 1, 1)
    chunk = (1, min(_USUAL_CHUNK, limits.max_chunk), limits.max_chunk)
    tree = (1, min(_USUAL_TREE, limits.max_tree), limits.max_tree)
    # TensorRT-RTX 1.4 (the interface of TensorRT 10.15) builds no masked `Attention` over exactly one token; up to two,
    # tuned for one, it does.
    token = (1, 1, 2) if manifest.graph.kv_strategy == "inplace" else one
    return [_shapes(manifest, tokens, past, rows) for tokens, rows in ((chunk, one), (token, one), (tree, tree))]


def _shapes(manifest: Manifest, tokens: _Span, past: _Span, rows: _Span) -> Shapes:
    model = manifest.model
    shapes = {
        "input_ids": _each(tokens, lambda size: [size]),
        "position_ids": _each(tokens, lambda size: [size]),
        "tree_mask": _each(tokens, lambda size: [size, size]),
        "logits_idx": _each(rows, lambda size: [size]),
    }
    if manifest.graph.kv_strategy == "inplace":
        return shapes  # caches of a fixed size
    caches = [f"past_{kind}_{layer}" for kind in "kv" for layer in range(model.n_layers)]
    return shapes | dict.fromkeys(caches, _each(past, lambda size: [size, model.n_kv_heads, model.head_dim]))


def _each(span: _Span, shape: Callable[[int], list[int]]) -> tuple[list[int], list[int], list[int]]:
    smallest, usual, largest = map(shape, span)
    return smallest, usual, largest


# Seen with TensorRT-RTX 1.7.1 and the three profiles: a peak of 0.28 GB with a graph of no size, and with one of 269 MB
# (the default model in float16) 2.59 GB and a plan of 510 MB. Larger models were not built.
_PEAK_PER_WEIGHT_BYTE = 9
_BUILDER = 300 << 20
_PLAN_PER_WEIGHT_BYTE = 2
_PLAN_KERNELS = 16 << 20
_KV_BYTES = 2
_ACTIVATION_BYTES = 4  # the float32 that softmax and RMSNorm hold


def build_bytes(weight_bytes: int) -> int:
    """Memory that building from weights of this size takes."""
    return _PEAK_PER_WEIGHT_BYTE * weight_bytes + _BUILDER


def plan_bytes(weight_bytes: int) -> int:
    """Size of the plan that is built."""
    return _PLAN_PER_WEIGHT_BYTE * weight_bytes + _PLAN_KERNELS


def run_bytes(manifest: Manifest, limits: EngineLimits, weight_bytes: int) -> int:
    """Memory of the device that one sequence at the engine's limits takes: plan, KV, logits, and the widest step of a
    pass, which is attention's scores or the layer's inner width.
    """
    model = manifest.model
    rows = max(limits.max_chunk, limits.max_tree)
    kv = 2 * model.n_layers * model.n_kv_heads * model.head_dim * (limits.max_context + rows) * _KV_BYTES
    logits = limits.max_tree * model.vocab_size * _ACTIVATION_BYTES
    scores = rows * (limits.max_context + rows) * model.n_heads * _ACTIVATION_BYTES
    return plan_bytes(weight_bytes) + kv + logits + 2 * scores


def require_memory(
    manifest: Manifest, limits: EngineLimits, weight_bytes: int, device_bytes: int | None, free: int | None = None
) -> None:
    """Check that this machine's memory, and the device's, have room for a build and for the engine that it makes.

    It is checked before the build begins: a builder takes minutes to run out of memory, and on a board with unified
    memory it takes the desktop with it.

    Args:
        weight_bytes: size of the graph's weights.
        device_bytes: all memory of the GPU that the engine shall run on; None where it is not here.
        free: bytes that this machine has free; None asks it.

    Raises:
        StarsdError: says how much is missing and what helps.
    """
    needed, there = build_bytes(weight_bytes), psutil.virtual_memory().available if free is None else free
    if there < needed:
        raise StarsdError(
            f"building this engine takes about {_gigabytes(needed)} of memory and {_gigabytes(there)} are free, "
            f"{_gigabytes(needed - there)} too little: close other programs, or build from a bundle of smaller weights "
            "(`starsd-edge export MODEL --runtime tensorrt --weights int4`)"
        )
    running = run_bytes(manifest, limits, weight_bytes)
    if device_bytes is not None and device_bytes < running:
        raise StarsdError(
            f"an engine for {limits.max_context} tokens takes about {_gigabytes(running)} and this GPU has "
            f"{_gigabytes(device_bytes)}, {_gigabytes(running - device_bytes)} too little: give a smaller --context, "
            "or build from a bundle of smaller weights"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
