"""The tokenizer inside a GGUF file as a tokenizer.json.

GGUF names the way text is split before merging (`tokenizer.ggml.pre`) without describing it. So each name that is
supported is spelled out here with everything that changes ids (transformers' own conversion takes the regular
expression alone); the others are refused, because a wrong splitting changes ids in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

from starsd_edge.errors import UsageError

_BYTES = 256
_SPACE = "▁"


@dataclass(frozen=True)
class _Splitting:
    """How a byte-level tokenizer cuts text before it merges.

    Attributes:
        pattern: regular expression of the pieces; None for GPT-2's own.
        digits: whether every digit stands alone.
        compose: whether text is put into Unicode's composed form first.
        whole_words: whether a piece that is in the vocabulary is taken without merging.
        begins: whether a prompt begins with the begin-of-sequence token where the file does not say.
    """

    pattern: str | None = None
    digits: bool = False
    compose: bool = False
    whole_words: bool = False
    begins: bool = False

    def cut(self) -> pre_tokenizers.PreTokenizer:
        if self.pattern is not None:
            split = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return (
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), letters])
            if self.digits
            else letters
        )


_LLAMA3 = _Splitting(GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"], whole_words=True, begins=True)
_SPLITTING = {
    "gpt-2": _Splitting(),
    "smollm": _Splitting(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _Splitting(GGUF_PRE_TOKENIZER_SPLITS["smaug-bpe"]),
    "qwen2": _Splitting(GGUF_PRE_TOKENIZER_SPLITS["qwen2"], compose=True),
    "tekken": _Splitting(GGUF_PRE_TOKENIZER_SPLITS["tekken"], whole_words=True, begins=True),
}
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of a tokenizer.json that gives the ids the GGUF file means.

    Args:
        path: the file, for messages.
        metadata: the file's fields.

    Raises:
        UsageError: a kind of tokenizer or of splitting that is not supported, or one that is incomplete.
    """
    kind, splitting = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != _SENTENCEPIECE and (kind != _BYTE_LEVEL or splitting not in _SPLITTING):
        raise UsageError(
            f"{path} has a tokenizer of kind {kind!r} with splitting {splitting!r}, which this version does not read "
            f"(supported: {_SENTENCEPIECE!r}, and {_BYTE_LEVEL!r} with {', '.join(map(repr, _SPLITTING))}): "
            "give the safetensors directory of the same model instead"
        )
    try:
        pieces = _Pieces(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"])
        if kind == _SENTENCEPIECE:
            prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
            tokenizer = _sentencepiece(path, pieces, metadata["tokenizer.ggml.scores"], prefix)
        else:
            tokenizer = _byte_level(pieces, metadata["tokenizer.ggml.merges"], _SPLITTING[str(splitting)])
    except KeyError as error:
        raise UsageError(f"{path} is incomplete: its tokenizer lacks {error}; fetch it again") from None
    except UsageError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise UsageError(f"{path} has a tokenizer that does not hold together ({error}): fetch it again") from None
    tokenizer.add_special_tokens(pieces.added(gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN))
    tokenizer.add_tokens(pieces.added(gguf.TokenType.USER_DEFINED))
    contents: dict[str, Any] = json.loads(tokenizer.to_str())
    return contents


def begins_with_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a plain prompt begins with the begin-of-sequence token: as the file says, else by custom of its kind."""
    kind, splitting = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    custom = kind == _SENTENCEPIECE or (splitting in _SPLITTING and _SPLITTING[splitting].begins)
    return bool(metadata.get("tokenizer.ggml.add_bos_token", custom))


class _Pieces:
    """The vocabulary with the type of each piece."""

    def __init__(self, texts: Sequence[str], types: Sequence[int]) -> None:
        self._all = [
            (text, index, gguf.TokenType(kind))
            for index, (text, kind) in enumerate(zip(texts, types, strict=True))
            # Converters fill up to the rows of the head: such ids belong to no text and are never to be chosen.
            if not (kind == gguf.TokenType.UNUSED and text == f"[PAD{index}]")
        ]

    def vocabulary(self) -> dict[str, int]:
        return {text: index for text, index, _ in self._all}

    def of(self, *kinds: gguf.TokenType) -> list[str]:
        return [text for text, _, kind in self._all if kind in kinds]

    def added(self, *kinds: gguf.TokenType) -> list[AddedToken]:
        special = gguf.TokenType.USER_DEFINED not in kinds
        return [AddedToken(text, normalized=False, special=special) for text in self.of(*kinds)]


def _byte_level(pieces: _Pieces, merges: Sequence[str], splitting: _Splitting) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(pieces.vocabulary(), pairs, ignore_merges=splitting.whole_words))
    if splitting.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.cut()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(path: Path, pieces: _Pieces, scores: Sequence[float], prefix: bool) -> Tokenizer:
    """SentencePiece's BPE: a space is a letter, an unknown character becomes its bytes, and of all neighbours those
    merge first whose union scores highest. So the merges are all ways to make a piece of two, by falling score.
    """
    vocabulary = pieces.vocabulary()
    ranked = {text: scores[vocabulary[text]] for text in pieces.of(gguf.TokenType.NORMAL)}
    unknown = pieces.of(gguf.TokenType.UNKNOWN)
    if len(set(ranked.values())) < 2 or len(pieces.of(gguf.TokenType.BYTE)) != _BYTES or len(unknown) != 1:
        raise UsageError(
            f"{path} has a tokenizer without scores, bytes or an unknown token, which decide its merges: "
            "give the safetensors directory of the same model instead"
        )
    merges = generate_merges({text: vocabulary[text] for text in ranked}, ranked)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown[0], fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefix else spaces)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return tokenizer
