"""How a checkpoint's weights are stored for TensorRT: the text that a search for scales looks at, the search, and what
it did to the perplexity.

A model writes that text by itself: no data set is needed, and the text is like what the model will see. It is kept in
the cache under the checkpoint's fingerprint, because writing it takes longer than all else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.bundles.manifest import PerplexityChange
from starsd_edge.doctor.machine import OWN_TEXT
from starsd_edge.errors import UsageError
from starsd_edge.runtime.engine import Engine, run_chain
from starsd_edge.text.chat import ChatFrame
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer
from starsd_export.quantising.search import PARTS, linear_parts, quantise_layers, set_weight
from starsd_export.quantising.stored import RANGE, StoredMatrices, quantise
from starsd_export.reference import STOCK_ATTENTION, run_stock
from starsd_export.training.texts import decode_batch


@dataclass(frozen=True)
class WritingRules:
    """How much is written and how.

    Attributes:
        rows: texts.
        judged: of these, the ones that no search sees.
        length: tokens of each.
        seed: of all that is drawn.
    """

    rows: int = 64
    judged: int = 12
    length: int = 192
    seed: int = 0

    @property
    def name(self) -> str:
        """Tells kept texts of other rules apart."""
        return f"{self.rows}x{self.length}-{self.seed}"


@dataclass(frozen=True)
class OwnText:
    """A model's own text as token ids, [N, length] each: for a search, and for judging what it found."""

    searched: list[list[int]]
    judged: list[list[int]]


def openings(tokenizer: Tokenizer, bos_id: int | None, vocab_size: int, rules: WritingRules) -> list[list[int]]:
    """What the texts begin with: by turns any token of the vocabulary, and the head of a chat where there is one.

    Args:
        vocab_size: of the model; padding beyond the tokenizer's ids begins no text.
    """
    first = [] if bos_id is None else [bos_id]
    known = min(vocab_size, tokenizer.size)
    drawn = np.random.default_rng(rules.seed).integers(0, known, rules.rows).tolist()
    plain = [[*first, token] for token in drawn]
    if not tokenizer.has_chat_template:
        return plain
    head = ChatFrame.of(lambda message: tokenizer.encode_chat([{"role": "user", "content": message}])).head
    return [opening if row % 2 else head or opening for row, opening in enumerate(plain)]


def write_own_text(model: PreTrainedModel, starts: Sequence[Sequence[int]], rules: WritingRules) -> OwnText:
    """Let a model write on from each of `starts`, drawing every token at temperature 1.

    The end of a turn ends no text: the model goes on with the next turn, as its template has it.
    """
    model.set_attn_implementation(STOCK_ATTENTION)
    short = [list(start[: rules.length // 2]) for start in starts]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rules.seed)
        written = decode_batch(model, short, rules.length - min(map(len, short)), 1.0, ())
    rows = [[*start, *ids][: rules.length] for start, ids in zip(short, written, strict=True)]
    return OwnText(rows[rules.judged :], rows[: rules.judged])


def _kept_text(source_fp: str, rules: WritingRules) -> OwnText | None:
    """The text that was written before for this checkpoint; None where there is none that can be used."""
    try:
        text = msgspec.json.decode(_place(source_fp, rules).read_bytes(), type=OwnText)
    except (OSError, UsageError, msgspec.DecodeError):
        return None
    return text if all(len(row) == rules.length for row in (*text.searched, *text.judged)) else None


def _place(source_fp: str, rules: WritingRules) -> Path:
    return cache_dir() / OWN_TEXT / f"{source_fp[:16]}-{rules.name}.json"


BITS = {"int8": 8, "int4": 4}
_FLOAT16 = 16


@dataclass(frozen=True)
class Blocks:
    """How weights are stored.

    Attributes:
        bits: 16 (float16), 8 or 4, of the linear layers of the model's layers.
        size: inputs in a block.
        head_bits: 16, 8 or 4, of the output head.
        embedding_bits: 16 or 8, of the embedding.
        wide: parts of the layers that have 8 bits where the others have 4.
    """

    bits: int
    size: int
    head_bits: int = _FLOAT16
    embedding_bits: int = _FLOAT16
    wide: frozenset[str] = frozenset()

    def by_part(self) -> dict[str, int]:
        """Bits of each part of a layer."""
        return {part: max(self.bits, 8) if part in self.wide else self.bits for part in PARTS}


def quantise_model(
    model: PreTrainedModel,
    blocks: Blocks,
    texts: Sequence[Sequence[int]] = (),
    progress: Callable[[int, int], None] = lambda done, layers: None,
) -> StoredMatrices:
    """Give a model the weights that its quantised graph is to have, where they are.

    Args:
        model: float32, in evaluation mode.
        texts: token ids, all of one length, that scales of int4 are searched on; none rounds every weight by itself.
        progress: called with the layers searched and all of them.

    Returns:
        How they are stored, for `quantise_graph`.

    Raises:
        UsageError: blocks of this size do not fill a matrix.
    """
    stored = StoredMatrices()
    _quantise_ends(model, blocks, stored)
    if texts and blocks.bits in RANGE:
        quantise_layers(model, blocks.by_part(), blocks.size, texts, stored, progress)
        return stored
    for part, linear in linear_parts(model):
        if (bits := blocks.by_part()[part]) in RANGE:
            set_weight(linear, stored.add(quantise(_half(linear.weight), bits, blocks.size)))
    return stored


def _quantise_ends(model: PreTrainedModel, blocks: Blocks, stored: StoredMatrices) -> None:
    """The embedding and the output head; they stay tied only where both are stored alike."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows, columns, tied = _half(embedding.weight), _half(head.weight), head.weight is embedding.weight
    if blocks.embedding_bits in RANGE:
        set_weight(embedding, stored.add(quantise(rows, blocks.embedding_bits, blocks.size)))
    if tied and blocks.head_bits == blocks.embedding_bits:
        head.weight = embedding.weight
    elif blocks.head_bits in RANGE:
        set_weight(head, stored.add(quantise(columns, blocks.head_bits, blocks.size)))


def _half(weight: object) -> npt.NDArray[np.float16]:
    return weight.detach().half().numpy()  # type: ignore[attr-defined,no-any-return]


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
    searched = () if own is None else own.searched
    stored = quantise_model(
        model, blocks, searched, lambda done, of: progress(f"storing the weights, layer {done} of {of}")
    )
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
    text = _kept_text(checkpoint.source_fp, rules)
    if text is None:
        progress(f"letting the model write {rules.rows * rules.length} tokens, once")
        tokenizer = checkpoint_tokenizer(checkpoint)
        text = write_own_text(model, openings(tokenizer, checkpoint.text.bos_id, model.config.vocab_size, rules), rules)
        try:
            place = _place(checkpoint.source_fp, rules)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, msgspec.json.encode(text))
        except (OSError, UsageError) as error:  # it serves this export
            progress(f"what the model wrote is not kept: {error}")
    return text


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
