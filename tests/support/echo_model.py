"""A model that says what it was asked to say: after the assistant's mark it repeats the last message of the chat, byte
by byte, and ends. So a test chooses an answer, down to where a character is cut, by its question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.speculation.tree import DraftTree
from starsd_edge.text.tokenizer import Tokenizer
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, LeaveError, Reply

CONTEXT = 128
EOS, USER, ASSISTANT, CALLS = range(256, 260)
MARKS = ("<|end|>", "<|u|>", "<|a|>", "[TOOL_CALLS]")
WORDS = 260

PLAIN = "{% for m in messages %}<|u|>{{ m.content }}{% endfor %}<|a|>"
HERMES = (
    "{% if tools %}<tool_call>{{ tools | map(attribute='function.name') | join }}{% endif %}"
    "{% for m in messages %}<|u|>{{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }}{{ c.function.arguments | tojson }}>{% endfor %}"
    "{% endfor %}<|a|>"
)
MISTRAL = HERMES.replace("<tool_call>", "[AVAILABLE_TOOLS][TOOL_CALLS]")
LLAMA = HERMES.replace("<tool_call>", '{"name": ..., "parameters": ...}')


def byte_backend() -> tokenizers.Tokenizer:
    """A token for each byte, and then the marks, all of them special."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return backend


def byte_tokenizer() -> Tokenizer:
    """The tokenizer of `byte_backend`."""
    return Tokenizer(byte_backend(), TextRules(bos_id=None, eos_ids=[EOS], add_bos=False))


def write_echo_bundle(directory: Path, template: str = PLAIN, context: int = CONTEXT) -> Path:
    """Its bundle."""
    return write_bundle(directory, template, byte_backend(), EOS, context)


class EchoEngine(PrefixEngine):
    """The model."""

    def __init__(self, max_context: int = CONTEXT, **options: Any) -> None:
        super().__init__(1, vocab_size=WORDS, max_context=max_context, **options)

    def prefix_logits(self, prefix: Sequence[int]) -> npt.NDArray[np.float32]:
        logits = super().prefix_logits(prefix)
        following = next_word(prefix)
        if following is not None:
            logits[following] = logits.max() + 4
        return logits


def next_word(text: Sequence[int]) -> int | None:
    """The token that the model says after this text; None where it has no opinion."""
    if ASSISTANT not in text:
        return None
    answer_at = len(text) - 1 - list(reversed(text)).index(ASSISTANT)
    asked = text[:answer_at]
    message_at = len(asked) - list(reversed(asked)).index(USER) if USER in asked else 0
    message, answer = list(asked[message_at:]), list(text[answer_at + 1 :])
    if answer != message[: len(answer)]:
        return None
    return message[len(answer)] if len(answer) < len(message) else EOS


def knowing(asked: Asked) -> Iterable[Reply]:
    """A hub's script: chains of what the model says, and beyond its end."""
    text, chain = list(asked.text), list[int]()
    for _ in range(min(asked.request.max_nodes, asked.request.max_depth)):
        following = next_word(text)
        chain.append(EOS if following is None else following)
        text.append(chain[-1])
    return [asked.draft(DraftTree.chain(chain))] if chain else []


def knowing_for(requests: int) -> Any:
    """The same for so many requests; then the hub cuts the connection, each time it is asked."""

    def script(asked: Asked) -> Iterable[Reply]:
        if asked.earlier >= requests:
            raise LeaveError
        return knowing(asked)

    return script
