"""A Llama of a few thousand random weights, as a safetensors directory and as a GGUF file, small enough to export in
seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.small_tokenizers import byte_level
from tests.support.tiny_gguf import write_model

CONTEXT = 512


def tiny_config(**changes: Any) -> LlamaConfig:
    """Two layers, grouped heads, tied embedding."""
    numbers = {
        "vocab_size": byte_level().get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return LlamaConfig(**(numbers | changes))


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """With the same seed the same weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(**changes)).eval()


def write_safetensors(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """The checkpoint directory a publisher would ship."""
    tiny_model(seed, **changes).save_pretrained(directory)
    (directory / "tokenizer.json").write_text(byte_level().to_str(), encoding="utf-8")
    return directory


def write_gguf(path: Path, seed: int = 0, splitting: str = "gpt-2") -> Path:
    """The same model and tokenizer as a GGUF file with float32 tensors."""
    return write_model(path, tiny_model(seed), splitting)
