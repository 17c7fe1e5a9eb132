"""The tensors that a published head must have, those that it may have, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from starsd_edge.errors import UsageError
from starsd_edge.heads.spec import HeadKind, HeadSpec
from starsd_export.draft_heads.public_config import HeadConfig
from starsd_export.draft_heads.public_names import (
    FUSION_BIAS,
    FUSION_NORM,
    FUSION_WEIGHT,
    KEPT,
    PUBLIC_NAMES,
    ROTATION,
    TO_TARGET,
    file_name,
)
from starsd_export.tensor_fit import require_fit

_KINDS: dict[HeadKind, str] = {"eagle": "an EAGLE-1 or EAGLE-2 head", "eagle3": "an EAGLE-3 head"}
_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_tensors(
    path: Any,
    spec: HeadSpec,
    config: HeadConfig,
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, str],
    *,
    fusion_bias: bool,
) -> None:
    """Refuse a file that does not hold this head.

    Args:
        path: of the head, for messages.
        tensors: by the names here.
        names: in the file, by the names here.
        fusion_bias: an EAGLE-3 head's fusion has one.

    Raises:
        UsageError: names the tensors that are missing, misshapen, too many, or no plain numbers.
    """
    shapes = _shapes(spec, config, fusion_bias=fusion_bias)
    misshaped = [
        (names[name], tuple(tensor.shape), shapes[name])
        for name, tensor in tensors.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    missing = (file_name(name, names) for name in shapes.keys() - _optional(spec, config) - tensors.keys())
    require_fit(path, _KINDS[spec.kind], missing, misshaped, (names[name] for name in tensors.keys() - shapes.keys()))
    for name, tensor in tensors.items():
        if name not in (TO_TARGET, KEPT) and tensor.dtype not in _PLAIN:
            raise UsageError(f"{path} holds {names[name]} as {tensor.dtype}: give the head before it was quantised")
    _require_rotation(path, spec, tensors, names)


def _shapes(spec: HeadSpec, config: HeadConfig, *, fusion_bias: bool) -> dict[str, tuple[int, ...]]:
    """All tensors that the head may have."""
    shapes = {PUBLIC_NAMES[name]: shape for name, shape in spec.tensor_shapes().items()}
    if spec.kind == "eagle3":
        shapes[FUSION_WEIGHT] = (spec.hidden_size, config.states_width)
        shapes[TO_TARGET] = (spec.draft_vocab_size,)
        shapes[KEPT] = (spec.vocab_size,)
        if fusion_bias:
            shapes[FUSION_BIAS] = (spec.hidden_size,)
        if config.norm_before_fc:
            shapes[FUSION_NORM] = (config.states_width,)
    return {**shapes, ROTATION: (spec.head_dim // 2,)}


def _optional(spec: HeadSpec, config: HeadConfig) -> set[str]:
    """Tensors that it need not bring: the target's where they fit, and what follows from others."""
    optional = {KEPT, ROTATION}
    whole = spec.draft_vocab_size == spec.vocab_size
    if whole:
        optional.add(TO_TARGET)
    if config.target_hidden_size in (None, spec.hidden_size):
        optional.add(PUBLIC_NAMES["embed.weight"])
    if whole and (config.tie_word_embeddings or config.target_hidden_size in (None, spec.hidden_size)):
        optional.add(PUBLIC_NAMES["lm_head.weight"])
    return optional


def _require_rotation(path: Any, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> None:
    if ROTATION not in tensors:
        return
    steps = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    if not torch.allclose(tensors[ROTATION].double(), spec.rope_theta**-steps, rtol=1e-2):
        raise UsageError(f"{path} holds {names[ROTATION]}, which is not what its rope_theta of {spec.rope_theta} gives")
