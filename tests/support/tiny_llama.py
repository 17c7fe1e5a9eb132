"""A Llama of a few thousand random weights, as a safetensors directory and as a GGUF file, small enough to export in
seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.small_tokenizers import byte_level

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
    model, config = tiny_model(seed), tiny_config()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, splitting)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(_gguf_name(name), _gguf_layout(name, tensor.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, splitting: str) -> None:
    contents = json.loads(byte_level().to_str())
    added = {token["id"]: token for token in contents["added_tokens"]}
    pieces = {index: piece for piece, index in contents["model"]["vocab"].items()}
    pieces |= {index: token["content"] for index, token in added.items()}
    control, user, normal = (int(kind) for kind in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, 1))
    types = [
        normal if index not in added else control if added[index]["special"] else user for index in range(len(pieces))
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list([pieces[index] for index in range(len(pieces))])
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in contents["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
    }
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name


def _gguf_layout(name: str, tensor: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """GGUF interleaves the two halves of each rotary pair of Q and K."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    return tensor
