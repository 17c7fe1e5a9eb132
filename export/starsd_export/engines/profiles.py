"""Optimisation profiles: the shapes that an engine is tuned for, from the limits that it shall keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starsd_edge.bundles.engine_manifest import EngineLimits
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import UsageError

Shapes = Mapping[str, tuple[list[int], list[int], list[int]]]
"""The smallest, the usual and the largest shape of every input whose shape a pass chooses."""

PROFILES = ("prefill", "token", "verify")
_USUAL_CHUNK = 64
_USUAL_TREE = 16
_USUAL_PAST = 512


@dataclass(frozen=True)
class _Span:
    """Smallest, usual and largest value of one dimension."""

    smallest: int
    usual: int
    largest: int


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
    past = _Span(0, min(_USUAL_PAST, limits.max_context), limits.max_context)
    one = _Span(1, 1, 1)
    chunk = _Span(1, min(_USUAL_CHUNK, limits.max_chunk), limits.max_chunk)
    tree = _Span(1, min(_USUAL_TREE, limits.max_tree), limits.max_tree)
    # TensorRT-RTX 1.4 (the interface of TensorRT 10.15) builds no masked `Attention` over exactly one token; up to two,
    # tuned for one, it does.
    token = _Span(1, 1, 2) if manifest.graph.kv_strategy == "inplace" else one
    return [_shapes(manifest, tokens, past, rows) for tokens, rows in ((chunk, one), (token, one), (tree, tree))]


def _shapes(manifest: Manifest, tokens: _Span, past: _Span, rows: _Span) -> Shapes:
    model = manifest.model
    row = [model.n_kv_heads, model.head_dim]
    shapes: dict[str, tuple[list[int], list[int], list[int]]] = {
        "input_ids": _each(tokens),
        "position_ids": _each(tokens),
        "tree_mask": ([tokens.smallest] * 2, [tokens.usual] * 2, [tokens.largest] * 2),
        "logits_idx": _each(rows),
    }
    if manifest.graph.kv_strategy == "inplace":
        return shapes  # caches of a fixed size
    caches = [f"past_{kind}_{layer}" for kind in "kv" for layer in range(model.n_layers)]
    return shapes | dict.fromkeys(caches, ([past.smallest, *row], [past.usual, *row], [past.largest, *row]))


def _each(span: _Span) -> tuple[list[int], list[int], list[int]]:
    return [span.smallest], [span.usual], [span.largest]
