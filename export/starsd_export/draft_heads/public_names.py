"""Names of the tensors of published heads.

One table serves both kinds and both ways. Other spellings of the same names are brought to EAGLE's first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starsd_edge.errors import UsageError

PUBLIC_NAMES = {
    "embed.weight": "embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "hidden_norm.weight": "layers.0.hidden_norm.weight",
    "input_norm.weight": "layers.0.input_layernorm.weight",
    "q.weight": "layers.0.self_attn.q_proj.weight",
    "k.weight": "layers.0.self_attn.k_proj.weight",
    "v.weight": "layers.0.self_attn.v_proj.weight",
    "o.weight": "layers.0.self_attn.o_proj.weight",
    "q.bias": "layers.0.self_attn.q_proj.bias",
    "k.bias": "layers.0.self_attn.k_proj.bias",
    "v.bias": "layers.0.self_attn.v_proj.bias",
    "post_norm.weight": "layers.0.post_attention_layernorm.weight",
    "gate.weight": "layers.0.mlp.gate_proj.weight",
    "up.weight": "layers.0.mlp.up_proj.weight",
    "down.weight": "layers.0.mlp.down_proj.weight",
    "norm.weight": "norm.weight",
}
"""By our names (`HeadSpec.tensor_shapes`)."""
QKV_BIASES = tuple(PUBLIC_NAMES[f"{name}.bias"] for name in "qkv")
FUSION_WEIGHT, FUSION_BIAS, FUSION_NORM = "fc.weight", "fc.bias", "input_norm.weight"
"""Of an EAGLE-3 head, which has no `fc` of its own."""
TO_TARGET, KEPT = "d2t", "t2d"
ROTATION = "layers.0.self_attn.rotary_emb.inv_freq"
"""A table that old files hold; it follows from the configuration."""
_LAYER = "layers.0."
_SPELLINGS = {
    "midlayer.": _LAYER,  # EAGLE-3
    "transformer.": _LAYER,  # speculators' EAGLE-1
    "fusion_fc.": "fc.",
    "draft_id_to_target_id": TO_TARGET,  # vLLM
}


def canonical_names(names: Iterable[str], path: object) -> dict[str, str]:
    """The name in the file of each tensor, by its name here.

    Raises:
        UsageError: two tensors have one place.
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        known = next((spelling for spelling in _SPELLINGS if name.startswith(spelling)), None)
        canonical = name if known is None else _SPELLINGS[known] + name[len(known) :]
        if canonical in found:
            raise UsageError(f"{path} holds {name} and {found[canonical]}, which have one place: fetch the head again")
        found[canonical] = name
    return found


def file_name(canonical: str, found: Mapping[str, str]) -> str:
    """What a tensor that is not there would be called: as the layer's others are, or all its spellings."""
    spellings = [
        canonical,
        *(other + canonical[len(name) :] for other, name in _SPELLINGS.items() if canonical.startswith(name)),
    ]
    layer = next((name for known, name in found.items() if known.startswith(_LAYER)), None)
    if layer is not None and canonical.startswith(_LAYER):
        prefix = layer.partition(".")[0]
        return next(name for name in spellings if name.startswith(prefix))
    return " or ".join(spellings)
