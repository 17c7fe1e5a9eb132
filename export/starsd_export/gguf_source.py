"""A GGUF file as a checkpoint, read by the `gguf` library."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starsd_edge.bundles.fingerprints import source_fingerprint
from starsd_export.chat_files import gguf_special_tokens, gguf_templates
from starsd_export.checkpoint_files import GgufNumbers, require_types
from starsd_export.gguf_config import config_of
from starsd_export.gguf_parts import all_parts, open_gguf
from starsd_export.gguf_tensors import read_rope_factors, read_tensors
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
