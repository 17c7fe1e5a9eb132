"""A small target for tests of the decode loop: tokens that are letters, and plain decoding by its definition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

import tokenizers
from tokenizers import decoders, models

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Answer, Request
from tests.support.prefix_engine import PrefixEngine
from tests.support.reference_sampling import reference_token

EOS = 23
WORDS = 24
PROMPT = tuple(ord(letter) - ord("a") for letter in "abacabadabacaba")


def letter_backend() -> tokenizers.Tokenizer:
    """Token i is the i-th letter; `EOS` is written <e>."""
    vocabulary = {letter: token for token, letter in enumerate(ascii_lowercase[:EOS])} | {"<e>": EOS}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.Fuse()
    return backend


def letters(eos_ids: Sequence[int] = (EOS,)) -> Tokenizer:
    """The tokenizer of `letter_backend`."""
    return Tokenizer(letter_backend(), TextRules(bos_id=None, eos_ids=list(eos_ids), add_bos=False))


def request(**changes: object) -> Request:
    """A request for 40 greedy tokens with chains of up to 4, with some fields changed."""
    usual = Request(PROMPT, SamplingParams(), max_tokens=40, context=128, shape=DraftShape(4, 4))
    return replace(usual, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plain:
    """What an answer must be."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str

    @classmethod
    def of(cls, answer: Answer) -> Plain:
        return cls(answer.token_ids, answer.text, answer.finish_reason)


def next_token(
    engine: PrefixEngine,
    sampling: SamplingParams,
    prefix: Sequence[int],
    prompt_length: int = len(PROMPT),
    eos_ids: Collection[int] = (),
) -> int:
    """What the target says after this text, the first `prompt_length` tokens of which are the prompt."""
    logits = engine.prefix_logits(prefix)[: engine.tokenizer_size].tolist()
    return reference_token(logits, sampling, prefix[:prompt_length], prefix[prompt_length:], eos_ids)


def plain_answer(engine: PrefixEngine, tokenizer: Tokenizer, wanted: Request) -> Plain:
    """The answer by its definition: one token after another, the whole text looked at after each."""
    eos_ids = frozenset[int]() if wanted.ignore_eos else tokenizer.eos_ids
    min_tokens = wanted.sampling.min_tokens
    text = list(wanted.prompt)
    answer: list[int] = []
    while True:
        token = next_token(engine, wanted.sampling, text, len(wanted.prompt), eos_ids)
        if token in eos_ids:
            return Plain(tuple(answer), tokenizer.decode(answer), "stop")
        text.append(token)
        answer.append(token)
        cut = _cut(tokenizer.decode(answer), wanted.stop, len(tokenizer.decode(answer[:min_tokens])))
        if cut is not None:
            return Plain(tuple(answer), cut, "stop")
        if len(answer) == wanted.max_tokens or len(text) == wanted.context:
            return Plain(tuple(answer), tokenizer.decode(answer), "length")


def _cut(text: str, stop: Sequence[str], exempt: int) -> str | None:
    """The text before the first stop string that ends after its first `exempt` characters, None without one."""
    for end in range(exempt + 1, len(text) + 1):
        completed = [len(each) for each in stop if text[:end].endswith(each)]
        if completed:
            return text[: end - max(completed)]
    return None
