"""GGUF files of tiny models, written as a converter would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from starsd_edge.runtime.torch_model import head_width
from tests.support.small_tokenizers import byte_level

Tensors = dict[str, np.ndarray]


def write_model(
    path: Path,
    model: PreTrainedModel,
    splitting: str = "gpt-2",
    fields: Mapping[str, Any] | None = None,
    alter: Callable[[Tensors], None] = lambda tensors: None,
) -> Path:
    """A model of any supported family, with the byte-level tokenizer of the tests and float32 tensors.

    Args:
        fields: more fields of the architecture, such as {"rope.scaling.type": "linear"}.
        alter: changes the tensors, by GGUF's names, before they are written.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_width(config))
    writer.add_value_length(head_width(config))
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_rope_dimension_count(head_width(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, value in (fields or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{config.model_type}.{name}", value)
    add_byte_level(writer, byte_level(), splitting, config.vocab_size)
    tensors = _tensors(model)
    alter(tensors)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    return _finish(writer, path)


def write_parts(stem: Path, model: PreTrainedModel, count: int) -> list[Path]:
    """The same in parts, as llama.cpp splits: the fields in the first, a share of the tensors in each."""
    whole = write_model(stem.with_suffix(".whole"), model)
    reader = gguf.GGUFReader(whole)
    paths = [stem.with_name(f"{stem.name}-{number + 1:05}-of-{count:05}.gguf") for number in range(count)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, model.config.model_type)
        for field in reader.fields.values() if number == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                sub = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data)
        _finish(writer, path)
    return paths


def write_tokenizer(path: Path, add: Callable[[gguf.GGUFWriter], None]) -> Path:
    """A GGUF file with a tokenizer and next to nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    add(writer)
    return _finish(writer, path)


def add_byte_level(writer: gguf.GGUFWriter, tokenizer: Tokenizer, splitting: str, rows: int | None = None) -> None:
    """Fields of a byte-level tokenizer; the vocabulary is padded up to the rows of the head."""
    contents = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in contents["added_tokens"]}
    pieces = {index: piece for piece, index in contents["model"]["vocab"].items()}
    pieces |= {index: token["content"] for index, token in added.items()}
    rows = rows or len(pieces)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list([pieces.get(index, f"[PAD{index}]") for index in range(rows)])
    writer.add_token_types([_type(index, pieces, added) for index in range(rows)])
    writer.add_token_merges([" ".join(merge) for merge in contents["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _type(index: int, pieces: dict[int, str], added: dict[int, Any]) -> int:
    if index not in pieces:
        return int(gguf.TokenType.UNUSED)
    if index not in added:
        return int(gguf.TokenType.NORMAL)
    return int(gguf.TokenType.CONTROL if added[index]["special"] else gguf.TokenType.USER_DEFINED)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: PreTrainedModel) -> Tensors:
    config = model.config
    tied = config.tie_word_embeddings
    return {
        _gguf_name(name): _gguf_layout(name, tensor.numpy(), config)
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head": "output",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
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


def _gguf_layout(name: str, tensor: np.ndarray, config: Any) -> np.ndarray:
    """The converters of these two families put the two numbers of each rotated pair of Q and K side by side."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name and config.model_type in ("llama", "smollm3"):
            halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    return tensor
