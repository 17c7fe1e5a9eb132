"""Text that a model writes by itself: what the search for scales looks at, and part of what its result is judged on.

No data set is needed, and the text is like what the model will see. It is kept in the cache under the checkpoint's
fingerprint, because writing it takes longer than all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.doctor.machine import OWN_TEXT
from starsd_edge.errors import UsageError
from starsd_edge.text.chat import ChatFrame
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.reference import STOCK_ATTENTION
from starsd_export.training.batched_decoding import decode_batch


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


def kept_text(source_fp: str, rules: WritingRules) -> OwnText | None:
    """The text that was written before for this checkpoint; None where there is none that can be used."""
    try:
        text = msgspec.json.decode(_place(source_fp, rules).read_bytes(), type=OwnText)
    except (OSError, UsageError, msgspec.DecodeError):
        return None
    return text if all(len(row) == rules.length for row in (*text.searched, *text.judged)) else None


def keep_text(source_fp: str, rules: WritingRules, text: OwnText) -> Path:
    """Keep a text for later exports of this checkpoint; returns where it is.

    Raises:
        OSError: it cannot be written.
        UsageError: no place for it is known.
    """
    place = _place(source_fp, rules)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, msgspec.json.encode(text))
    return place


def _place(source_fp: str, rules: WritingRules) -> Path:
    return cache_dir() / OWN_TEXT / f"{source_fp[:16]}-{rules.name}.json"
