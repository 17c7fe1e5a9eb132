"""A GGUF file as a checkpoint, read by the `gguf` library."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.bundles.fingerprints import source_fingerprint
from starsd_edge.errors import UsageError
from starsd_export.chat_files import gguf_special_tokens, gguf_templates
from starsd_export.checkpoint_files import GgufNumbers, require_types
from starsd_export.gguf_config import config_of
from starsd_export.gguf_parts import all_parts, open_gguf
from starsd_export.gguf_tokenizer import begins_with_bos, build_tokenizer

_ARCHITECTURE = "general.architecture"


class GgufSource:
    """What the exporter asks of a GGUF file.

    Raises:
        UsageError: no GGUF file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata, tensors = open_gguf(path)
        prefix = f"{self.model_type}."
        numbers = {
            name.removeprefix(prefix): value for name, value in self._metadata.items() if name.startswith(prefix)
        }
        require_types(path, numbers, GgufNumbers, prefix)
        self._tensors = all_parts(path, self._metadata, tensors)

    @property
    def model_type(self) -> str:
        """GGUF's name of the architecture; transformers' own is the same for those that are supported."""
        return str(self._field(_ARCHITECTURE, "unknown"))

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as float32."""
        return 4 * sum(int(tensor.n_elements) for tensor in self._tensors)

    def _field(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(name, default)

    def chat_templates(self) -> dict[str, str]:
        """jinja sources by name."""
        return gguf_templates(self._metadata)

    def special_tokens(self, by_id: Mapping[str, str]) -> dict[str, str]:
        """Texts of the named special tokens: the file names each by its own id, whatever else ends an answer."""
        return gguf_special_tokens(self._metadata)

    @property
    def bos_id(self) -> int | None:
        """Begin-of-sequence token."""
        value = self._field("tokenizer.ggml.bos_token_id")
        return None if value is None else int(value)

    @property
    def eos_ids(self) -> list[int]:
        """Tokens that end an answer: end of sequence and, where stated, end of turn."""
        found = (self._field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        return sorted({int(value) for value in found if value is not None})

    def where(self, key: str) -> Path:
        """The file that states this key."""
        return self._path

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with the begin-of-sequence token."""
        return begins_with_bos(self._metadata)

    @property
    def licence(self) -> str:
        """As the file states it."""
        return str(self._field("general.license", "unknown"))

    def tokenizer(self) -> dict[str, Any]:
        """Contents of the tokenizer.json that gives the same ids."""
        return build_tokenizer(self._path, self._metadata)

    def fingerprint(self) -> str:
        """source_fp: over the quantised bytes as they lie in the file."""
        prefix = f"{self.model_type}."
        numbers = {name: value for name, value in self._metadata.items() if name.startswith(prefix)}
        tensors = {
            tensor.name: hashlib.sha256(
                f"{tensor.tensor_type.name} {tensor.shape.tolist()} ".encode()
                + np.ascontiguousarray(tensor.data).tobytes()
            ).hexdigest()
            for tensor in self._tensors
        }
        return source_fingerprint({"model_type": self.model_type, **numbers}, tensors)

    def config(self) -> dict[str, Any]:
        """What config.json would say."""
        shapes = {tensor.name: tensor.shape.tolist()[::-1] for tensor in self._tensors}
        return config_of(self._path, self.model_type, self._metadata, shapes)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor as float32, by transformers' names."""
        return read_tensors(self._path, self._tensors, self.config())

    def rope_factors(self) -> torch.Tensor | None:
        """By what the frequencies of RoPE are divided, or None."""
        return read_rope_factors(self._path, self._tensors)


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
