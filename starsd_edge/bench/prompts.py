"""Prompts of exactly one length: figures of prompts of different lengths cannot be put side by side.

A prompt is a user's message inside the model's chat template. The template stays whole; the message is cut after the
tokens that fit, or lengthened by the messages that follow it in the file (from the first again after the last).
Messages therefore put what they ask for first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from starsd_edge.errors import UsageError
from starsd_edge.text.chat import ChatFrame, Encode

_LEAST_MESSAGE = 8
"""Least tokens of a message in a prompt: a shorter one asks for nothing."""
TREATMENT = (
    "each message, inside the model's chat template, is cut after the tokens that fit --prompt-tokens, or lengthened "
    "by the messages that follow it in the file"
)


SHIPPED, HELD_OUT = "prompts.txt", "held_out.txt"
"""File of the messages that decoding is timed with, and file of those that drafters are judged by. No head of ours was
trained on either.
"""


def read_messages(path: Path | None, shipped: str = SHIPPED) -> list[str]:
    """The messages of a file, one per line, empty lines and those that begin with # left out; for None those of a file
    that is shipped.

    Raises:
        UsageError: the file cannot be read or holds no message.
    """
    name = "the shipped prompts" if path is None else str(path)
    try:
        text = (resources.files(__package__) / shipped if path is None else path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompts in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from error
    messages = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not messages:
        raise UsageError(f"there is no prompt in {name}: write one per line")
    return messages


def fit_prompts(messages: Sequence[str], encode: Encode, length: int) -> list[list[int]]:
    """One prompt of exactly `length` tokens for each message.

    Raises:
        UsageError: the template leaves no room for a message, or cannot be kept around a cut one.
    """
    frame = ChatFrame.of(encode)
    room = length - len(frame.head) - len(frame.tail)
    if room < _LEAST_MESSAGE:
        least = length - room + _LEAST_MESSAGE
        raise UsageError(f"--prompt-tokens {length} leaves no room for a message: the least is {least} for this model")
    return [[*frame.head, *_fill(messages, first, encode, frame, room), *frame.tail] for first in range(len(messages))]


def _fill(messages: Sequence[str], first: int, encode: Encode, frame: ChatFrame, room: int) -> list[int]:
    """`room` tokens of the message number `first` and, as far as needed, of those after it."""
    text = messages[first]
    following = first + 1
    while len(tokens := frame.message(encode(text))) < room:
        text = f"{text} {messages[following % len(messages)]}"
        following += 1
    return tokens[:room]


WINDOW = 64
"""Last tokens of a text in which repeated phrases are counted."""
GRAM = 4
"""Tokens of a phrase whose repetition is counted."""
REPEATS = 3
"""Times that one phrase must stand in the last `WINDOW` tokens for the text to count as looping."""


def is_looping(ids: Sequence[int]) -> bool:
    """Whether the last `WINDOW` tokens hold one phrase of `GRAM` tokens `REPEATS` times."""
    window = ids[-WINDOW:]
    phrases = Counter(tuple(window[i : i + GRAM]) for i in range(len(window) - GRAM + 1))
    return max(phrases.values(), default=0) >= REPEATS


def before_loop(ids: Sequence[int]) -> int:
    """How many tokens come before a text begins to loop: its length if it does not."""
    return next((end - 1 for end in range(1, len(ids) + 1) if is_looping(ids[:end])), len(ids))
