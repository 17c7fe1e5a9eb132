"""A checkpoint of a few thousand random weights of each family that can be exported, with the things that set the
family apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_export.pipeline import ExportOptions, export_bundle
from tests.support.bundle_store import key_of, tiny_copy
from tests.support.small_tokenizers import byte_level

CONTEXT = 1024
FAR = 300
"""A position beyond the original length of the RoPE scalings, and near the end of the sliding window."""
SHORT = {"original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, **SHORT}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    **SHORT,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + index / 20 for index in range(8)],
    "long_factor": [2.0 + index for index in range(8)],
    "original_max_position_embeddings": 512,
}
PHI_STYLE = {name: value for name, value in LONGROPE.items() if name != "original_max_position_embeddings"}
"""Without its length, which stands beside it in the configuration."""
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-one-head-each": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": False},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-3.1-rope": {"model_type": "llama", "rope_parameters": LLAMA3, "head_dim": 32},
    "llama-linear-rope": {"model_type": "llama", "rope_parameters": LINEAR},
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    "mistral-window": {"model_type": "mistral", "sliding_window": FAR + 8, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-yarn": {"model_type": "qwen2", "rope_parameters": YARN, "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3-biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True, "tie_word_embeddings": False},
    "llama-dynamic-rope": {"model_type": "llama", "rope_parameters": DYNAMIC},
    "llama-longrope": {"model_type": "llama", "rope_parameters": LONGROPE},
    "llama-longrope-phi-style": {
        "model_type": "llama",
        "rope_parameters": PHI_STYLE,
        "original_max_position_embeddings": 512,
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "padded": {"model_type": "qwen2", "vocab_size": 448},
}
"""What a checkpoint of each kind sets on top of `_NUMBERS`."""

_NUMBERS: dict[str, Any] = {
    "vocab_size": byte_level().get_vocab_size(),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def tiny_family(seed: int = 0, **changes: Any) -> PreTrainedModel:
    """transformers' stock class with random weights, norms and biases too; with the same seed the same weights."""
    torch.manual_seed(seed)
    numbers = _NUMBERS | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}} | changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**numbers))
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith("norm.weight"):
                values.normal_(1.0, 0.2)
            elif name.endswith("bias"):
                values.normal_(0.0, 0.3)
    return model.eval()


def write_family(directory: Path, seed: int = 0, shard_size: str = "5GB", **changes: Any) -> Path:
    """The checkpoint directory a publisher would ship."""
    tiny_family(seed, **changes).save_pretrained(directory, max_shard_size=shard_size)
    (directory / "tokenizer.json").write_text(byte_level().to_str(), encoding="utf-8")
    return directory


def exported_family(place: Path, family: str, options: ExportOptions, **changes: Any) -> Bundle:
    """The bundle of this one of `VARIANTS`, in the directory; see `tests.support.bundle_store.tiny_copy`."""

    def export(made: Path) -> None:
        export_bundle(write_family(place / "checkpoint", **VARIANTS[family], **changes), made, options)

    name = f"tiny-{family}-{key_of(VARIANTS[family], changes, options)}"
    return tiny_copy(place / "bundle", name, load_bundle, export)
