"""What a model's chat template puts around a user's message, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starsd_edge.errors import UsageError

Encode = Callable[[str], list[int]]
"""A user's message to the token ids of the whole prompt, chat template and all."""

_PROBES = ("apple", "zebra")
"""Two messages that share neither their first nor their last token."""


@dataclass(frozen=True)
class ChatFrame:
    """The tokens before and after a message."""

    head: list[int]
    tail: list[int]

    @classmethod
    def of(cls, encode: Encode) -> ChatFrame:
        """The frame that a template has around any message; empty where a model has no template."""
        one, other = (encode(probe) for probe in _PROBES)
        return cls(_common(one, other), _common(one[::-1], other[::-1])[::-1])

    def message(self, prompt: Sequence[int]) -> list[int]:
        """The message's own tokens.

        Raises:
            UsageError: the tokens of the frame are not those around every message.
        """
        end = len(prompt) - len(self.tail)
        if list(prompt[: len(self.head)]) != self.head or list(prompt[end:]) != self.tail or end <= len(self.head):
            raise UsageError("this model's chat template treats messages differently: its prompts cannot be cut")
        return list(prompt[len(self.head) : end])


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The common prefix."""
    shared: list[int] = []
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared.append(left)
    return shared
