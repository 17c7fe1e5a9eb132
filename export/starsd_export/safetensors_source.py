"""A directory of safetensors files, config.json and tokenizer.json as a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from starsd_edge.bundles.fingerprints import source_fingerprint
from starsd_edge.errors import UsageError

_RUNTIME_KEYS = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache", "architectures")
"""Keys of config.json that say how a model was saved and not what it is."""


class SafetensorsSource:
    """What the exporter asks of a checkpoint directory.

    Raises:
        UsageError: files are missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config = _read_json(path / "config.json")
        self._files = sorted(path.glob("*.safetensors"))
        if not self._files:
            raise UsageError(
                f"{path} holds no safetensors file: pickled weights must be converted to safetensors first"
            )

    @property
    def model_type(self) -> str:
        """transformers' name of the architecture."""
        return str(self._config.get("model_type", "unknown"))

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as float32."""
        return 4 * self._scan[0]

    @property
    def chat_template(self) -> str | None:
        """jinja source: a file of its own, or in tokenizer_config.json."""
        file = self._path / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self._tokenizer_config.get("chat_template")
        return template if isinstance(template, str) else None

    @property
    def bos_id(self) -> int | None:
        """Begin-of-sequence token."""
        value = self._generation.get("bos_token_id", self._config.get("bos_token_id"))
        return None if value is None else int(value)

    @property
    def eos_ids(self) -> list[int]:
        """Tokens that end an answer, from generation_config.json where it is there."""
        value = self._generation.get("eos_token_id", self._config.get("eos_token_id"))
        return sorted(int(item) for item in (value if isinstance(value, list) else [value]) if item is not None)

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with the begin-of-sequence token."""
        return bool(self._tokenizer_config.get("add_bos_token", False))

    @property
    def licence(self) -> str:
        """Model cards state it in prose; the directory itself does not."""
        return "unknown"

    def tokenizer(self) -> dict[str, Any]:
        """Contents of tokenizer.json."""
        return _read_json(self._path / "tokenizer.json")

    def fingerprint(self) -> str:
        """source_fp: over the tensors' bytes as they lie in the files."""
        numbers = {key: value for key, value in self._config.items() if key not in _RUNTIME_KEYS}
        return source_fingerprint(numbers, self._scan[1])

    def pretrained_arguments(self) -> dict[str, Any]:
        """How transformers finds it."""
        return {"pretrained_model_name_or_path": str(self._path), "use_safetensors": True}

    @cached_property
    def _generation(self) -> dict[str, Any]:
        return _read_json_or_nothing(self._path / "generation_config.json")

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _read_json_or_nothing(self._path / "tokenizer_config.json")

    @cached_property
    def _scan(self) -> tuple[int, dict[str, str]]:
        """Elements in all tensors, and each tensor's hash by name."""
        elements, hashes = 0, {}
        for file in self._files:
            with _opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118  (a safetensors handle is no mapping)
                    tensor = tensors.get_tensor(name).contiguous()
                    elements += tensor.numel()
                    raw = tensor.reshape(-1).view(dtype=_byte_dtype()).numpy().tobytes()
                    label = f"{tensor.dtype} {list(tensor.shape)} ".encode()
                    hashes[name] = hashlib.sha256(label + raw).hexdigest()
        return elements, hashes


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise UsageError(f"{file} is no whole safetensors file ({error}): fetch it again") from None


def _byte_dtype() -> Any:
    import torch

    return torch.uint8


def _read_json_or_nothing(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.parent} is no checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}): fetch the checkpoint again") from None
    if not isinstance(contents, dict):
        raise UsageError(f"{path} is not what its name says (no JSON object): fetch the checkpoint again")
    return contents
