"""How a checkpoint's weights are stored for TensorRT, from the search to the judgement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import PerplexityChange
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine, run_chain
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.blocks import Blocks, Search, quantise_model
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer
from starsd_export.quantising.own_text import OwnText, WritingRules, keep_text, kept_text, openings, write_own_text
from starsd_export.quantising.stored import StoredMatrices
from starsd_export.reference import run_stock

Progress = Callable[[str], None]


def store_weights(
    checkpoint: Checkpoint, model: PreTrainedModel, blocks: Blocks, rules: WritingRules | None, progress: Progress
) -> tuple[StoredMatrices, dict[str, PerplexityChange]]:
    """Give a model the weights that its graph is to have, and say what that did to its perplexity.

    Args:
        rules: of the text that int4 is searched on; None rounds every weight by itself.
        progress: called with what is being done.

    Raises:
        UsageError: blocks of this size do not fill a matrix.
    """
    own = None if rules is None else _own_text(checkpoint, model, rules, progress)
    texts = {HELD_OUT: _passages(checkpoint)} | ({} if own is None else {OWN: own.judged})
    progress("perplexity of the checkpoint")
    before = perplexities(partial(_stock_logits, model), texts)
    progress("storing the weights")
    stored = quantise_model(model, blocks, None if own is None else Search(own.searched, _by_layer(progress)))
    progress("perplexity of the stored weights")
    return stored, changes(before, perplexities(partial(_stock_logits, model), texts), texts)


def engine_perplexity(checkpoint: Checkpoint, model: PreTrainedModel, engine: Engine) -> dict[str, PerplexityChange]:
    """What an engine's perplexity is beside that of the model it was made from."""
    texts = {HELD_OUT: _passages(checkpoint)}
    before = perplexities(partial(_stock_logits, model), texts)
    return changes(before, perplexities(partial(_engine_logits, engine), texts), texts)


def _passages(checkpoint: Checkpoint) -> list[list[int]]:
    return held_out_texts(checkpoint_tokenizer(checkpoint), checkpoint.config.vocab_size)


def _own_text(checkpoint: Checkpoint, model: PreTrainedModel, rules: WritingRules, progress: Progress) -> OwnText:
    text = kept_text(checkpoint.source_fp, rules)
    if text is None:
        progress(f"letting the model write {rules.rows * rules.length} tokens, once")
        tokenizer = checkpoint_tokenizer(checkpoint)
        text = write_own_text(model, openings(tokenizer, checkpoint.bos_id, model.config.vocab_size, rules), rules)
        try:
            keep_text(checkpoint.source_fp, rules, text)
        except (OSError, UsageError) as error:  # it serves this export
            progress(f"what the model wrote is not kept: {error}")
    return text


def _by_layer(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, layers: progress(f"storing the weights, layer {done} of {layers}")


def _stock_logits(model: PreTrainedModel, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return run_stock(model, ids, kv_dtype="float16").logits


def _engine_logits(engine: Engine, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return run_chain(engine, engine.open(len(ids)), ids).logits


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
