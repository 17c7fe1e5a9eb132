"""A directory of safetensors files, config.json and tokenizer.json as a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
import torch
from safetensors import SafetensorError, safe_open

from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.fingerprints import source_fingerprint
from starsd_edge.errors import UsageError
from starsd_export.chat_files import directory_special_tokens, directory_templates
from starsd_export.checkpoint_files import Generation, TokenizerNotes, read_json

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_RUNTIME_KEYS = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache", "architectures")
"""Keys of config.json that say how a model was saved and not what it is."""


class SafetensorsSource:
    """What the exporter asks of a checkpoint directory.

    Attributes:
        model_type: transformers' name of the architecture.
        licence: "unknown": model cards state it in prose, the directory itself does not.

    Raises:
        UsageError: files are missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if (path / "adapter_config.json").exists():
            raise UsageError(f"{path} holds an adapter and not a whole model: merge it into its model first")
        if not (path / "config.json").exists():
            raise UsageError(f"{path} is no checkpoint: it has no config.json; {_instead(path)}")
        self._config = read_json(path / "config.json")
        self.model_type = str(self._config.get("model_type", "unknown"))
        self.licence = "unknown"
        self._index = _read_index(path)
        self._files = _weight_files(path, self._index)

    def config(self) -> dict[str, Any]:
        """Contents of config.json."""
        return self._config

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as float32."""
        return 4 * self._scan[0]

    def chat_templates(self) -> dict[str, str]:
        """jinja sources by name."""
        legacy = _read_json_or_nothing(self._path / "chat_template.json")
        return directory_templates(self._path, self._tokenizer_config, legacy)

    def special_tokens(self, by_id: Mapping[str, str]) -> dict[str, str]:
        """Texts of the named special tokens; `by_id` has what the configuration's ids stand for."""
        legacy = _read_json_or_nothing(self._path / "special_tokens_map.json")
        return directory_special_tokens(self._tokenizer_config, legacy, by_id)

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

    def where(self, key: str) -> Path:
        """The file that states this key of the generation's."""
        return self._path / ("generation_config.json" if key in self._generation else "config.json")

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with the begin-of-sequence token. As for transformers, what tokenizer.json
        does by itself decides.
        """
        return self.bos_id is not None and _first_id(self.tokenizer()) == self.bos_id

    def tokenizer(self) -> dict[str, Any]:
        """Contents of tokenizer.json."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> dict[str, Any]:
        path = self._path / "tokenizer.json"
        if not path.is_file() and (self._path / "tokenizer.model").is_file():
            raise UsageError(
                f"{self._path} has a tokenizer.model and no tokenizer.json: transformers makes one, with sentencepiece "
                "installed, by AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
            )
        contents = read_json(path)
        try:
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(contents))
        except Exception as error:  # the library raises nothing more precise
            raise UsageError(f"{path} is no usable tokenizer ({error}): fetch the checkpoint again") from None
        for index, added in self._tokenizer_config.get("added_tokens_decoder", {}).items():
            if str(tokenizer.token_to_id(added["content"])) != index:
                raise UsageError(
                    f"{self._path} adds {added['content']}, which its tokenizer.json lacks: save it again with "
                    "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY) of transformers"
                )
        return contents

    def fingerprint(self) -> str:
        """source_fp: over the tensors' bytes as they lie in the files."""
        numbers = {key: value for key, value in self._config.items() if key not in _RUNTIME_KEYS}
        return source_fingerprint(numbers, self._scan[1])

    def tensors(self) -> dict[str, Any]:
        """Every tensor by its name, as torch maps it from the file."""
        return dict(self._stored())

    def rope_factors(self) -> None:
        """All of RoPE stands in the configuration."""
        return

    @cached_property
    def _generation(self) -> dict[str, Any]:
        return _read_json_or_nothing(self._path / "generation_config.json", Generation)

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _read_json_or_nothing(self._path / "tokenizer_config.json", TokenizerNotes)

    @cached_property
    def _scan(self) -> tuple[int, dict[str, str]]:
        """Elements in all tensors, and each tensor's hash by name."""
        elements, hashes = 0, {}
        for name, stored in self._stored():
            tensor = stored.contiguous()
            elements += tensor.numel()
            raw = tensor.reshape(-1).view(dtype=torch.uint8).numpy().tobytes()
            label = f"{tensor.dtype} {list(tensor.shape)} ".encode()
            hashes[name] = hashlib.sha256(label + raw).hexdigest()
        return elements, hashes

    def _stored(self) -> Iterator[tuple[str, Any]]:
        """Every tensor of every file, each name once."""
        seen: set[str] = set()
        for file in self._files:
            with _opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118  (a safetensors handle is no mapping)
                    if name in seen:
                        raise UsageError(f"{file} holds {name}, which another file of {self._path} holds too")
                    seen.add(name)
                    yield name, tensors.get_tensor(name)
        if lost := sorted(set(self._index) - seen):
            raise UsageError(f"{self._path / _INDEX} names {lost[0]}, which no file holds: fetch the checkpoint again")


def _read_index(path: Path) -> dict[str, str]:
    """The file that each tensor of a sharded checkpoint is in; empty where there is no index or it is not used."""
    if (path / _WHOLE).is_file() or not (path / _INDEX).is_file():
        return {}
    index = read_json(path / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UsageError(f"{path / _INDEX} does not say which file holds which tensor: fetch the checkpoint again")
    return index


def _weight_files(path: Path, index: dict[str, str]) -> list[Path]:
    """One file, or the shards of the index; other safetensors beside them are another form of the same model."""
    if (path / _WHOLE).is_file():
        return [path / _WHOLE]
    shards = sorted(set(index.values()))
    if any(Path(name).name != name for name in shards):
        raise UsageError(f"{path / _INDEX} names files outside the checkpoint: fetch the checkpoint again")
    if lost := [name for name in shards if not (path / name).is_file()]:
        raise UsageError(f"{path} lacks {lost[0]}, which {_INDEX} names: fetch the checkpoint again")
    files = [path / name for name in shards] or sorted(path.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{path} holds no safetensors file: pickled weights must be converted to safetensors first")
    return files


def _first_id(tokenizer: dict[str, Any]) -> int | None:
    """What tokenizer.json puts before a text."""
    encoded = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).encode("a").ids
    return encoded[0] if encoded else None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise UsageError(f"{file} is no whole safetensors file ({error}): fetch it again") from None


def _instead(directory: Path) -> str:
    """What may have been meant by a directory that is no checkpoint."""
    if (directory / MANIFEST_NAME).exists():
        return "it is a bundle already"
    nearest = next(iter(sorted(directory.glob("*.gguf"))), None)
    if nearest is not None:
        return f"give the GGUF file itself, {nearest}"
    return "give a GGUF file, or a directory with config.json, tokenizer.json and safetensors"


def _read_json_or_nothing(path: Path, schema: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    return read_json(path, schema) if path.is_file() else {}
