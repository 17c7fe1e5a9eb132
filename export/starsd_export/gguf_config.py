"""A GGUF file's hyperparameters as the config.json that the same model would have.

Written out here because a key that is passed over in silence (a RoPE scaling, a head width) makes another model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from starsd_edge.errors import UsageError

_NUMBERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_READ_BELOW = (
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "vocab_size",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "rope.scaling.finetuned": (True, False),
    "rope.scaling.attn_factor": (1.0,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
}
"""Keys that say nothing where they have one of these values."""


def config_of(
    path: Path, model_type: str, metadata: Mapping[str, Any], tensors: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Contents of a config.json.

    Args:
        path: the file, for messages.
        model_type: GGUF's name of the architecture, a supported family; transformers' own is the same.
        metadata: the file's fields.
        tensors: the shape of every tensor, by GGUF's names.

    Raises:
        UsageError: a key is missing, or one is there that this version does not know.
    """
    numbers = {
        name.removeprefix(f"{model_type}."): value
        for name, value in metadata.items()
        if name.startswith(f"{model_type}.")
    }
    _require_known(path, model_type, numbers)
    try:
        config = {ours: numbers[theirs] for theirs, ours in _NUMBERS.items()}
        vocab_size, _ = tensors["token_embd.weight"]
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} is incomplete: it lacks {error}; fetch it again") from None
    return {
        **config,
        "model_type": model_type,
        "num_key_value_heads": numbers.get("attention.head_count_kv", config["num_attention_heads"]),
        "head_dim": _head_dim(path, numbers, config),
        "vocab_size": vocab_size,
        # What GGUF has no key for, or no other value of.
        "hidden_act": "silu",
        "sliding_window": None,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope(path, numbers, config["max_position_embeddings"]),
        **_biases(model_type, tensors),
    }


def _require_known(path: Path, model_type: str, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if name in _NUMBERS or name in _READ_BELOW or value in _WITHOUT_EFFECT.get(name, ()):
            continue
        raise UsageError(f"{path} sets {model_type}.{name} to {value!r}, which this version does not export")


def _head_dim(path: Path, numbers: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    usual = config["hidden_size"] // config["num_attention_heads"]
    keys = numbers.get("attention.key_length", numbers.get("rope.dimension_count", usual))
    for name in ("attention.value_length", "rope.dimension_count"):
        if numbers.get(name, keys) != keys:
            raise UsageError(
                f"{path} has a {name} of {numbers[name]} beside heads of {keys} numbers, "
                "which this version does not export"
            )
    return int(keys)


def _rope(path: Path, numbers: Mapping[str, Any], context: int) -> dict[str, Any]:
    base = {"rope_theta": float(numbers.get("rope.freq_base", 10000.0))}
    factor = float(numbers.get("rope.scaling.factor", numbers.get("rope.scale_linear", 0.0)))
    kind = numbers.get("rope.scaling.type", "linear")  # what a file means that names a factor only
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {**base, "rope_type": "default"}
    if kind == "linear":
        return {**base, "rope_type": "linear", "factor": factor}
    if kind != "yarn" or not factor:
        raise UsageError(
            f"{path} has the RoPE scaling {kind!r}, which this version does not read from GGUF (supported: none, "
            "linear, yarn): give the safetensors directory of the same model instead"
        )
    return {
        **base,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(numbers.get("rope.scaling.original_context_length", context)),
        "beta_fast": float(numbers.get("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(numbers.get("rope.scaling.yarn_beta_slow", 1.0)),
    }


def _biases(model_type: str, tensors: Collection[str]) -> dict[str, bool]:
    """Switches of the families that can do with and without; the others refuse a bias, or lack of one, by name."""
    if model_type == "qwen2":
        return {}
    found = {"attention_bias": "blk.0.attn_q.bias" in tensors}
    return found if model_type == "qwen3" else {**found, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}
