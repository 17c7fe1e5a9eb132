"""Prompts of exactly one length: figures of prompts of different lengths cannot be put side by side.

A prompt is a user's message inside the model's chat template. The template stays whole; the message is cut after the
tokens that fit, or lengthened by the messages that follow it in the file (from the first again after the last).
Messages therefore put what they ask for first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from starsd_edge.errors import UsageError

Encode = Callable[[str], list[int]]
"""A user's message to the token ids of the whole prompt, chat template and all."""

_LEAST_MESSAGE = 8
"""Tokens of a message below which a prompt asks for nothing."""
_PROBES = ("apple", "zebra")
"""Two messages that share neither their first nor their last token."""

TREATMENT = (
    "each message, inside the model's chat template, is cut after the tokens that fit --prompt-tokens, or lengthened "
    "by the messages that follow it in the file"
)


@dataclass(frozen=True)
class _Frame:
    """What the template puts around a message."""

    head: list[int]
    tail: list[int]

    def message(self, prompt: Sequence[int]) -> list[int]:
        """The message's own tokens.

        Raises:
            UsageError: the tokens of the frame are not those around every message.
        """
        end = len(prompt) - len(self.tail)
        if list(prompt[: len(self.head)]) != self.head or list(prompt[end:]) != self.tail or end <= len(self.head):
            raise UsageError("this model's chat template treats messages differently: its prompts cannot be cut")
        return list(prompt[len(self.head) : end])


def read_messages(path: Path | None) -> list[str]:
    """The messages of a file, one per line, empty lines and those that begin with # left out; ours for None.

    Raises:
        UsageError: the file cannot be read or holds no message.
    """
    name = "the shipped prompts" if path is None else str(path)
    try:
        text = (resources.files(__package__) / "prompts.txt" if path is None else path).read_text(encoding="utf-8")
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
    frame = _frame(encode)
    room = length - len(frame.head) - len(frame.tail)
    if room < _LEAST_MESSAGE:
        least = length - room + _LEAST_MESSAGE
        raise UsageError(f"--prompt-tokens {length} leaves no room for a message: the least is {least} for this model")
    return [[*frame.head, *_fill(messages, first, encode, frame, room), *frame.tail] for first in range(len(messages))]


def _fill(messages: Sequence[str], first: int, encode: Encode, frame: _Frame, room: int) -> list[int]:
    """`room` tokens of the message number `first` and, as far as needed, of those after it."""
    text = messages[first]
    following = first + 1
    while len(tokens := frame.message(encode(text))) < room:
        text = f"{text} {messages[following % len(messages)]}"
        following += 1
    return tokens[:room]


def _frame(encode: Encode) -> _Frame:
    one, other = (encode(probe) for probe in _PROBES)
    return _Frame(_common(one, other), _common(one[::-1], other[::-1])[::-1])


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The common prefix."""
    shared: list[int] = []
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared.append(left)
    return shared
