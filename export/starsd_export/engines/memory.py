"""Is there room for a build, and for the engine that it makes?

Asked before it begins: a builder takes minutes to run out of memory, and on a board with unified memory it takes the
desktop with it.
"""

from __future__ import annotations

import psutil

from starsd_edge.bundles.engine_manifest import EngineLimits
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import StarsdError

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
    """Check this machine's memory, and the device's.

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
