"""The tensors of a GGUF file as transformers names and lays them out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.errors import UsageError

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the RoPE frequencies: how GGUF writes the scaling of Llama 3.1."""
_INTERLEAVED = ("llama", "smollm3")
"""Architectures whose Q and K hold the two numbers of a rotated pair side by side; transformers has them half a head
apart.
"""
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def read_tensors(path: Path, tensors: Iterable[Any], config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """float32 tensors by transformers' names; one without a counterpart keeps its own name.

    Args:
        path: the file, for messages.
        tensors: of the gguf reader.
        config: contents of the model's config.json.

    Raises:
        UsageError: a tensor is stored in a way that the gguf library does not read.
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    interleaved = config["model_type"] in _INTERLEAVED
    found: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        if tensor.name == ROPE_FACTORS:
            continue
        values = _floats(path, tensor)
        part = _part(tensor.name)
        if interleaved and part in heads and values.shape[0] == heads[part] * config["head_dim"]:
            values = _halves(values, heads[part])
        found[transformers_name(tensor.name)] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return found


def read_rope_factors(path: Path, tensors: Iterable[Any]) -> torch.Tensor | None:
    """float32 [head_dim / 2], or None where the file has none."""
    factors = next((tensor for tensor in tensors if tensor.name == ROPE_FACTORS), None)
    return None if factors is None else torch.from_numpy(np.array(_floats(path, factors)))


def transformers_name(name: str) -> str:
    """transformers' name of a tensor, or the same where it has none."""
    if found := _IN_LAYER.fullmatch(name):
        layer, part, kind = found.groups()
        return f"model.layers.{layer}.{_LAYER[part]}.{kind}" if part in _LAYER else name
    part, _, kind = name.partition(".")
    return f"{_WHOLE[part]}.{kind}" if part in _WHOLE else name


def _part(name: str) -> str:
    found = _IN_LAYER.fullmatch(name)
    return found.group(2) if found else ""


def _floats(path: Path, tensor: Any) -> npt.NDArray[np.float32]:
    try:
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    except NotImplementedError:
        raise UsageError(
            f"{path} stores {tensor.name} as {tensor.tensor_type.name}, which this version does not read: "
            "give another quantisation or the safetensors directory of the same model"
        ) from None


def _halves(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    halves: npt.NDArray[np.float32] = pairs.swapaxes(1, 2).reshape(values.shape)
    return halves
