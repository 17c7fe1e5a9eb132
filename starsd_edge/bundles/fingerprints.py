"""Fingerprints: what two parties must share before one's drafts can fit the other.

All are sha256 hex digests of canonical JSON (sorted keys, no spaces), so that they depend on what a thing is and not
on the file it came in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def tokenizer_fingerprint(tokenizer: Mapping[str, Any]) -> str:
    """Fingerprint of a tokenizer from the contents of its tokenizer.json: id -> piece, merges, special ids, and how
    text is split before merging.

    What does not change ids (padding, truncation, the decoder's settings, post-processing, the way merges are written)
    does not count.
    """
    model = tokenizer["model"]
    pieces = {index: piece for piece, index in _vocabulary(model)}
    added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens", ())}
    return _digest(
        {
            "kind": model.get("type", "BPE"),
            "pieces": sorted((pieces | added).items()),
            "scores": _scores(model),
            "merges": [each.split(" ", 1) if isinstance(each, str) else list(each) for each in model.get("merges", ())],
            "special": sorted(token["id"] for token in tokenizer.get("added_tokens", ()) if token.get("special")),
            "byte_fallback": bool(model.get("byte_fallback")),
            "normalizer": tokenizer.get("normalizer"),
            "pre_tokenizer": _splitting(tokenizer.get("pre_tokenizer")),
        }
    )


def source_fingerprint(config: Mapping[str, Any], tensors: Mapping[str, str]) -> str:
    """Fingerprint of a checkpoint: its canonical configuration and the hash of every tensor as it is stored.

    Args:
        config: the numbers that make the architecture.
        tensors: sha256 hex of each tensor's dtype, shape and bytes, by name.
    """
    return _digest({"config": dict(config), "tensors": dict(tensors)})


def feature_fingerprint(
    source_fp: str, kind: str, width: int, tap_layers: Sequence[int] = (), fusion_fp: str = ""
) -> str:
    """Fingerprint of the features a graph gives: of which checkpoint, of which kind, tapped where (layer ids in
    EAGLE's numbering), fused by what (sha256 of the weights), how wide.
    """
    fused = {"fusion": fusion_fp} if fusion_fp else {}
    return _digest({"source": source_fp, "kind": kind, "layers": list(tap_layers), "width": width, **fused})


def _vocabulary(model: Mapping[str, Any]) -> list[tuple[str, int]]:
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        return [(piece, int(index)) for piece, index in vocab.items()]
    return [(entry[0], index) for index, entry in enumerate(vocab)]


def _scores(model: Mapping[str, Any]) -> list[float]:
    vocab = model["vocab"]
    return [] if isinstance(vocab, Mapping) else [float(entry[1]) for entry in vocab]


def _splitting(pre_tokenizer: Mapping[str, Any] | None) -> Any:
    """The pre-tokenizer without settings that only concern offsets."""
    if pre_tokenizer is None:
        return None
    kept = {key: value for key, value in pre_tokenizer.items() if key not in ("trim_offsets", "pretokenizers")}
    if "pretokenizers" in pre_tokenizer:
        kept["pretokenizers"] = [_splitting(inner) for inner in pre_tokenizer["pretokenizers"]]
    return kept


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
