"""What a GGUF file states, as the config.json and the tokenizer.json that the same model would have.

Both are written out here because what is passed over in silence makes another model: a key (a RoPE scaling, a head
width), or the way text is split before merging. GGUF names that way (`tokenizer.ggml.pre`) without describing it, so
each name that is supported is spelled out with everything that changes ids (transformers' own conversion takes the
regular expression alone), and the others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

from starsd_edge.errors import UsageError
from starsd_export.checkpoint_files import GGUF_NUMBERS

_NUMBERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "rope.scaling.finetuned": (True, False),
    "rope.scaling.attn_factor": (1.0,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
}
"""Keys that say nothing where they have one of these values."""


def config_of(
    path: Path, model_type: str, numbers: Mapping[str, Any], tensors: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Contents of a config.json.

    Args:
        path: the file, for messages.
        model_type: GGUF's name of the architecture, a supported family; transformers' own is the same.
        numbers: the fields of the architecture, by their names without it.
        tensors: the shape of every tensor, by GGUF's names.

    Raises:
        UsageError: a key is missing, or one is there that this version does not know.
    """
    for name, value in numbers.items():
        if name not in GGUF_NUMBERS and value not in _WITHOUT_EFFECT.get(name, ()):
            raise UsageError(f"{path} sets {model_type}.{name} to {value!r}, which this version does not export")
    try:
        config = {ours: numbers[theirs] for theirs, ours in _NUMBERS.items()}
        vocab_size, _ = tensors["token_embd.weight"]
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} is incomplete: it lacks {error}; fetch it again") from None
    return {
        **config,
        "model_type": model_type,
        "num_key_value_heads": numbers.get("attention.head_count_kv", config["num_attention_heads"]),
        "head_dim": _head_dim(path, numbers, config),
        "vocab_size": vocab_size,
        # What GGUF has no key for, or no other value of.
        "hidden_act": "silu",
        "sliding_window": None,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope(path, numbers, config["max_position_embeddings"]),
        **_biases(model_type, tensors),
    }


def _head_dim(path: Path, numbers: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    usual = config["hidden_size"] // config["num_attention_heads"]
    keys = numbers.get("attention.key_length", numbers.get("rope.dimension_count", usual))
    for name in ("attention.value_length", "rope.dimension_count"):
        if numbers.get(name, keys) != keys:
            raise UsageError(
                f"{path} has a {name} of {numbers[name]} beside heads of {keys} numbers, "
                "which this version does not export"
            )
    return int(keys)


def _rope(path: Path, numbers: Mapping[str, Any], context: int) -> dict[str, Any]:
    base = {"rope_theta": float(numbers.get("rope.freq_base", 10000.0))}
    factor = float(numbers.get("rope.scaling.factor", numbers.get("rope.scale_linear", 0.0)))
    kind = numbers.get("rope.scaling.type", "linear")  # what a file means that names a factor only
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {**base, "rope_type": "default"}
    if kind == "linear":
        return {**base, "rope_type": "linear", "factor": factor}
    if kind != "yarn" or not factor:
        raise UsageError(
            f"{path} has the RoPE scaling {kind!r}, which this version does not read from GGUF (supported: none, "
            "linear, yarn): give the safetensors directory of the same model instead"
        )
    return {
        **base,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(numbers.get("rope.scaling.original_context_length", context)),
        "beta_fast": float(numbers.get("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(numbers.get("rope.scaling.yarn_beta_slow", 1.0)),
    }


def _biases(model_type: str, tensors: Collection[str]) -> dict[str, bool]:
    """Switches of the families that can do with and without; the others refuse a bias, or lack of one, by name."""
    if model_type == "qwen2":
        return {}
    found = {"attention_bias": "blk.0.attn_q.bias" in tensors}
    return found if model_type == "qwen3" else {**found, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}


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
