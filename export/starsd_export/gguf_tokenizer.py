"""The tokenizer inside a GGUF file as a tokenizer.json.

GGUF names the way text is split before merging (`tokenizer.ggml.pre`) without describing it, and transformers' own
conversion takes the GPT-2 way for all. So each name that is supported is spelled out here; the others are refused,
because a wrong splitting changes ids in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from starsd_edge.errors import UsageError


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


_SPLITTING: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _smollm, "gpt-2": _gpt2}


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of a tokenizer.json that gives the ids the GGUF file means.

    Args:
        path: the file, for messages.
        metadata: the file's fields.

    Raises:
        UsageError: a kind of tokenizer or of splitting that is not supported, or one that is incomplete.
    """
    kind, splitting = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or splitting not in _SPLITTING:
        raise UsageError(
            f"{path} has a tokenizer of kind {kind!r} with splitting {splitting!r}, which this version does not read "
            "(supported: 'gpt2' with " + ", ".join(map(repr, _SPLITTING)) + "): "
            "give the safetensors directory of the same model instead"
        )
    try:
        pieces: list[str] = metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
        types: list[int] = metadata["tokenizer.ggml.token_type"]
    except KeyError as error:
        raise UsageError(f"{path} is incomplete: its tokenizer lacks {error}; fetch it again") from None
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = _SPLITTING[splitting]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(pieces, types, gguf.TokenType.CONTROL))
    tokenizer.add_tokens(_added(pieces, types, gguf.TokenType.USER_DEFINED))
    contents: dict[str, Any] = json.loads(tokenizer.to_str())
    return contents


def _added(pieces: list[str], types: list[int], wanted: gguf.TokenType) -> list[AddedToken]:
    special = wanted is gguf.TokenType.CONTROL
    return [
        AddedToken(piece, normalized=False, special=special)
        for piece, kind in zip(pieces, types, strict=True)
        if kind == wanted
    ]
