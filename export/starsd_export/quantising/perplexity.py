"""What stored weights do to a model's perplexity, on text that no search has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import resources

import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.manifest import PerplexityChange
from starsd_edge.text.tokenizer import Tokenizer

HELD_OUT, OWN = "held-out text", "its own text"
"""Kinds of text: passages that are shipped, and what the model wrote itself."""
Say = Callable[[Sequence[int]], npt.NDArray[np.floating]]
"""Logits [n, V] of a model for token ids, from nothing."""
Texts = Mapping[str, Sequence[Sequence[int]]]
_LONGEST = 160
"""Tokens of a passage that are judged: what every model that is exported has room for."""
_SHIPPED = "held_out.txt"


def held_out_texts(tokenizer: Tokenizer, vocab_size: int) -> list[list[int]]:
    """Token ids of the shipped passages."""
    lines = (resources.files(__package__) / _SHIPPED).read_text(encoding="utf-8").splitlines()
    passages = "\n".join(line for line in lines if not line.startswith("# ")).split("\n---\n")
    encoded = (tokenizer.encode(passage.strip()) for passage in passages)
    return [[token for token in ids if token < vocab_size][:_LONGEST] for ids in encoded]


def perplexities(say: Say, texts: Texts) -> dict[str, float]:
    """exp of the mean negative log-likelihood of every token but each text's first, by kind of text."""
    return {kind: _perplexity(say, group) for kind, group in texts.items()}


def changes(before: Mapping[str, float], after: Mapping[str, float], texts: Texts) -> dict[str, PerplexityChange]:
    """For the manifest."""
    tokens = {kind: sum(len(ids) - 1 for ids in group) for kind, group in texts.items()}
    return {kind: PerplexityChange(before[kind], after[kind], tokens[kind]) for kind in texts}


def _perplexity(say: Say, texts: Sequence[Sequence[int]]) -> float:
    total, count = 0.0, 0
    for ids in texts:
        logits = say(ids)[:-1].astype(np.float64)
        peak = logits.max(axis=1, keepdims=True)
        likelihood = np.take_along_axis(logits - peak, np.asarray(ids[1:])[:, None], axis=1)[:, 0]
        total -= float((likelihood - np.log(np.exp(logits - peak).sum(axis=1))).sum())
        count += len(ids) - 1
    return _exp(total / count)


def _exp(value: float) -> float:
    """Beyond what a float holds: its largest, for a manifest knows no infinity. NaN is that, too."""
    largest = float(np.finfo(np.float64).max)
    return math.exp(value) if value < math.log(largest) else largest
