"""A GGUF file as a checkpoint, read by the `gguf` library: one file, or the parts that llama.cpp splits it into.

The first part holds the fields of the model, every part some of its tensors. The library believes every count that
a file states; here a count ends where the file does, and a header is no longer than a model's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.bundles.fingerprints import source_fingerprint
from starsd_edge.errors import UsageError, one_line
from starsd_export.chat_files import gguf_special_tokens, gguf_templates
from starsd_export.checkpoint_files import GgufFields, GgufNumbers, require_types
from starsd_export.gguf_config import begins_with_bos, build_tokenizer, config_of

_MAGIC = b"GGUF"
_MOST_READS = 3_000_000
"""Numbers and texts of a header. A vocabulary of 260,000 pieces takes a million, as one of 130,000 with merges does."""
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MERGE = "or merge the parts with llama.cpp: `llama-gguf-split --merge FIRST-PART MERGED.gguf`"


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The library's reader, within the file's own bounds."""

    _reads = 0

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise ValueError(f"its header has more than {_MOST_READS} values")
        found: npt.NDArray[Any] = super()._get(offset, dtype, count, override_order)
        if len(found) != int(count):
            raise ValueError("it ends before what its header announces")
        return found


def open_gguf(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The fields of a file, each that is used of its own type, and the tensors of the library's reader.

    Raises:
        UsageError: no GGUF file, or a damaged one.
    """
    try:
        _require_magic(path)
        # The reader maps the file and builds a view per tensor, so a file that was cut short fails here.
        reader = _Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OSError, OverflowError, RecursionError, TypeError) as error:
        raise UsageError(
            f"{path} is no whole GGUF file ({one_line(error)}): fetch it again, or give a safetensors directory"
        ) from None
    return require_types(path, fields, GgufFields), list(reader.tensors)


def all_parts(path: Path, fields: Mapping[str, Any], own: list[Any]) -> list[Any]:
    """The tensors of all parts in order; the file's own where it is whole.

    Args:
        path: of the first part.
        fields: of it.
        own: its tensors.

    Raises:
        UsageError: another part than the first was given, or one is missing, of another model or in another place.
    """
    count = fields.get("split.count", 1)
    if count <= 1:
        return own
    place = _PART.fullmatch(path.name)
    if place is None or int(place["count"]) != count:
        raise UsageError(
            f"{path} is one of {count} parts of a model and not named so: give it the name that it had "
            f"(NAME-{1:05}-of-{count:05}.gguf), {_MERGE}"
        )
    if fields.get("split.no", 0) != 0 or int(place["number"]) != 1:
        raise UsageError(
            f"{path} is one of {count} parts of a model: give the first, {_part_file(path, place, 1).name}"
        )
    tensors = list(own)
    for number in range(1, count):
        tensors += _read_part(_part_file(path, place, number + 1), number, count)
    names = [tensor.name for tensor in tensors]
    stated = fields.get("split.tensors.count")
    if stated is not None and stated != len(tensors):
        raise UsageError(
            f"the {count} parts of {path} hold {len(tensors)} tensors and should hold {stated}: fetch them again"
        )
    if len(set(names)) != len(names):
        raise UsageError(f"two parts of {path} hold a tensor of the same name: fetch them again")
    return tensors


def _read_part(path: Path, number: int, count: int) -> list[Any]:
    if not path.is_file():
        raise UsageError(f"{path} is missing, part {number + 1} of {count} of the model: put all parts side by side")
    fields, tensors = open_gguf(path)
    if fields.get("split.no") != number or fields.get("split.count") != count:
        raise UsageError(
            f"{path} says that it is part {fields.get('split.no', 0) + 1} of {fields.get('split.count', 1)} and not "
            f"{number + 1} of {count}, as its name does: fetch it again"
        )
    return tensors


def _part_file(path: Path, place: re.Match[str], number: int) -> Path:
    return path.with_name(f"{place['name']}-{number:05}-of-{int(place['count']):05}.gguf")


def _require_magic(path: Path) -> None:
    """The library finds out too late, in what it takes for tensors."""
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(f"{path} is no GGUF file: give one, or a directory with config.json and safetensors")


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


class GgufSource:
    """What the exporter asks of a GGUF file.

    Attributes:
        model_type: GGUF's name of the architecture; transformers' own is the same for those that are supported.
        weight_bytes: size of the weights as float32.
        bos_id: begin-of-sequence token, or None.
        eos_ids: tokens that end an answer: end of sequence and, where stated, end of turn.
        add_bos: whether a plain prompt begins with the begin-of-sequence token.
        licence: as the file states it.

    Raises:
        UsageError: no GGUF file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata, tensors = open_gguf(path)
        self.model_type = str(self._metadata.get("general.architecture", "unknown"))
        prefix = f"{self.model_type}."
        self._numbers = {
            name.removeprefix(prefix): value for name, value in self._metadata.items() if name.startswith(prefix)
        }
        require_types(path, self._numbers, GgufNumbers, prefix)
        self._tensors = all_parts(path, self._metadata, tensors)
        self.weight_bytes = 4 * sum(int(tensor.n_elements) for tensor in self._tensors)
        bos, *ends = (self._metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot"))
        self.bos_id: int | None = bos
        self.eos_ids: list[int] = sorted({token for token in ends if token is not None})
        self.add_bos = begins_with_bos(self._metadata)
        self.licence = str(self._metadata.get("general.license", "unknown"))

    def chat_templates(self) -> dict[str, str]:
        """jinja sources by name."""
        return gguf_templates(self._metadata)

    def special_tokens(self, by_id: Mapping[str, str]) -> dict[str, str]:
        """Texts of the named special tokens: the file names each by its own id, whatever else ends an answer."""
        return gguf_special_tokens(self._metadata)

    def where(self, key: str) -> Path:
        """The file that states a key of the model's text rules."""
        return self._path

    def tokenizer(self) -> dict[str, Any]:
        """Contents of the tokenizer.json that gives the same ids."""
        return build_tokenizer(self._path, self._metadata)

    def fingerprint(self) -> str:
        """source_fp: over the quantised bytes as they lie in the file."""
        numbers = {f"{self.model_type}.{name}": value for name, value in self._numbers.items()}
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
        return config_of(self._path, self.model_type, self._numbers, shapes)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor as float32 by transformers' names; one without a counterpart keeps its own name.

        Raises:
            UsageError: a tensor is stored in a way that the gguf library does not read.
        """
        config = self.config()
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        found: dict[str, torch.Tensor] = {}
        for tensor in self._tensors:
            if tensor.name == ROPE_FACTORS:
                continue
            name, part = transformers_name(tensor.name)
            values, count = _floats(self._path, tensor), heads.get(part, 0)
            if self.model_type in _INTERLEAVED and count and values.shape[0] == count * config["head_dim"]:
                values = _halves(values, count)
            found[name] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return found

    def rope_factors(self) -> torch.Tensor | None:
        """What the frequencies of RoPE are divided by, float32 [head_dim / 2]; None where the file has none."""
        factors = next((tensor for tensor in self._tensors if tensor.name == ROPE_FACTORS), None)
        return None if factors is None else torch.from_numpy(np.array(_floats(self._path, factors)))


def transformers_name(name: str) -> tuple[str, str]:
    """transformers' name of a tensor, or the same where it has none; and GGUF's name of its part of a layer, or ""."""
    if found := _IN_LAYER.fullmatch(name):
        layer, part, kind = found.groups()
        return f"model.layers.{layer}.{_LAYER[part]}.{kind}" if part in _LAYER else name, part
    part, _, kind = name.partition(".")
    return f"{_WHOLE[part]}.{kind}" if part in _WHOLE else name, ""


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
