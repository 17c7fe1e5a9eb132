"""How a checkpoint's weights are stored for TensorRT, from the search to the judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import PerplexityChange
from starsd_edge.runtime.engine import Engine, run_chain
from starsd_export.blocks import Blocks, Search, quantise_model
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer
from starsd_export.quantising.own_text import OwnText, WritingRules, keep_text, kept_text, openings, write_own_text
from starsd_export.quantising.perplexity import HELD_OUT, OWN, changes, held_out_texts, perplexities
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
        keep_text(checkpoint.source_fp, rules, text)
    return text


def _by_layer(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, layers: progress(f"storing the weights, layer {done} of {layers}")


def _stock_logits(model: PreTrainedModel, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return run_stock(model, ids, kv_dtype="float16").logits


def _engine_logits(engine: Engine, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return run_chain(engine, engine.open(len(ids)), ids).logits
