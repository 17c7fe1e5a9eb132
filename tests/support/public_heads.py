"""Tiny random heads in the layouts in which heads are published, written out by hand: names, shapes, settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH = 16, 24, 4, 2, 4
VOCAB, GUESSES = 40, 12
KEPT = [1, 2, 3, 5, 8, 13, 21, 22, 23, 34, 38, 39]
NUMBERS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
}
SPECULATORS = {"speculators_model_type": "eagle", "transformer_layer_config": NUMBERS, "layernorms": False}

Shapes = dict[str, tuple[int, ...]]


def layer(prefix: str, *, attention_in: int = HIDDEN, width: int = WIDTH, kv_heads: int = KV_HEADS) -> Shapes:
    """What every head has."""
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * width, attention_in),
        f"{prefix}self_attn.k_proj.weight": (kv_heads * width, attention_in),
        f"{prefix}self_attn.v_proj.weight": (kv_heads * width, attention_in),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * width),
        f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
    }


def biases(prefix: str) -> Shapes:
    """Of Q, K and V."""
    return {
        f"{prefix}self_attn.q_proj.bias": (HEADS * WIDTH,),
        f"{prefix}self_attn.k_proj.bias": (KV_HEADS * WIDTH,),
        f"{prefix}self_attn.v_proj.bias": (KV_HEADS * WIDTH,),
    }


def eagle3(prefix: str, *, guesses: int | None = GUESSES, target: int = HIDDEN, width: int = WIDTH) -> Shapes:
    """An EAGLE-3 head; without an output matrix where it guesses among all ids."""
    shapes = {
        "fc.weight": (HIDDEN, 3 * target),
        f"{prefix}hidden_norm.weight": (HIDDEN,),
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        **layer(prefix, attention_in=2 * HIDDEN, width=width),
        "norm.weight": (HIDDEN,),
    }
    return shapes if guesses is None else {**shapes, "lm_head.weight": (guesses, HIDDEN), "d2t": (guesses,)}


@dataclass(frozen=True)
class Variant:
    """A layout.

    Attributes:
        config: of config.json.
        shapes: of the tensors that must be there.
        optional: of those that may be left out.
    """

    config: dict[str, Any]
    shapes: Shapes
    optional: Shapes = field(default_factory=dict)


VARIANTS: dict[str, Variant] = {
    "eagle-vicuna": Variant(
        {name: value for name, value in NUMBERS.items() if name != "num_key_value_heads"},
        {"fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,), **layer("layers.0.", kv_heads=HEADS)},
        {"embed_tokens.weight": (VOCAB, HIDDEN), "layers.0.self_attn.rotary_emb.inv_freq": (WIDTH // 2,)},
    ),
    "eagle-llama3": Variant(
        NUMBERS | {"bias": False, "rope_theta": 500000, "rope_scaling": None, "tie_word_embeddings": True},
        {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer("layers.0.")},
        {"embed_tokens.weight": (VOCAB, HIDDEN)},
    ),
    "eagle-qwen2": Variant(
        NUMBERS | {"bias": True, "qkv_bias": True, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,), **layer("layers.0."), **biases("layers.0.")},
    ),
    "eagle-speculators": Variant(
        SPECULATORS | {"fusion_bias": True},
        {"fusion_fc.weight": (HIDDEN, 2 * HIDDEN), "fusion_fc.bias": (HIDDEN,), **layer("transformer.")},
    ),
    "eagle3": Variant(
        NUMBERS | {"draft_vocab_size": GUESSES},
        eagle3("midlayer."),
        {"t2d": (VOCAB,), "embed_tokens.weight": (VOCAB, HIDDEN)},
    ),
    "eagle3-sglang": Variant(
        NUMBERS
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": GUESSES,
            "head_dim": 8,
            "bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 13, 24]},
        },
        {**eagle3("layers.0.", width=8), "fc.bias": (HIDDEN,)},
    ),
    "eagle3-all-ids": Variant(
        NUMBERS | {"draft_vocab_size": None, "attention_bias": True},
        {**eagle3("midlayer.", guesses=None), **biases("midlayer.")},
    ),
    "eagle3-tied": Variant(
        NUMBERS | {"tie_word_embeddings": True},
        eagle3("midlayer.", guesses=None),
        {"embed_tokens.weight": (VOCAB, HIDDEN)},
    ),
    "eagle3-narrow": Variant(
        NUMBERS | {"draft_vocab_size": GUESSES, "target_hidden_size": 20},
        {**eagle3("midlayer.", target=20), "embed_tokens.weight": (VOCAB, HIDDEN)},
    ),
    "eagle3-speculators": Variant(
        SPECULATORS
        | {
            "speculators_model_type": "eagle3",
            "draft_vocab_size": GUESSES,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": [3, 14, 27],
        },
        {
            **{name: shape for name, shape in eagle3("layers.0.").items() if name != "d2t"},
            "draft_id_to_target_id": (GUESSES,),
            "input_norm.weight": (3 * HIDDEN,),
        },
    ),
}


def random_tensors(shapes: Shapes, seed: int = 0) -> dict[str, torch.Tensor]:
    """float32 but for the tables of ids."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=draw) * 0.3
        tensors[name] = 1 + values if name.endswith("norm.weight") else values
    for name in tensors.keys() & {"d2t", "draft_id_to_target_id"}:
        tensors[name] = torch.tensor(KEPT) - torch.arange(GUESSES)
    if "t2d" in tensors:
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), torch.tensor(KEPT))
    for name in tensors:
        if name.endswith("inv_freq"):
            tensors[name] = 10000.0 ** -(torch.arange(0, WIDTH, 2) / WIDTH)
    return tensors


def write_head(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory
