"""Small recorded texts for the timing backend: letters, with features that are numbers and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starsd_edge.bench.trace import Trace, Traces, TraceSource
from tests.support.decoding import PROMPT, WORDS
from tests.support.prefix_engine import PrefixEngine

WIDTH = 8
SOURCE_FP = "1" * 64
"""That of `small_manifest`."""


def letter_source(max_context: int = 128) -> TraceSource:
    """Whose texts they are: the letter bundle's."""
    return TraceSource(
        bundle="small",
        source_fp=SOURCE_FP,
        feature_fp="2" * 64,
        feature_kind="last_hidden",
        vocab_size=WORDS,
        max_context=max_context,
    )


def letter_trace(seed: int = 0, answer_tokens: int = 40, prompt: Sequence[int] = PROMPT) -> Trace:
    """A text as a small model would write it, which n-grams guess in part."""
    engine = PrefixEngine(seed, vocab_size=WORDS)
    text = list(prompt)
    for _ in range(answer_tokens):
        text.append(int(engine.prefix_logits(text).argmax()))
    ids = np.array(text, dtype=np.int64)
    features = np.random.default_rng(seed).normal(size=(len(ids), WIDTH)).astype(np.float16)
    return Trace(ids, len(prompt), features)


def letter_traces(texts: int = 3, answer_tokens: int = 40) -> Traces:
    """Several."""
    return Traces(letter_source(), [letter_trace(seed, answer_tokens) for seed in range(texts)])
