"""When an answer ends, decided token by token, so that it ends alike for single tokens and accepted blocks.

The end of sequence is looked at before the counts: a block that holds it ends there with "stop", however long the rest
of the block is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starsd_edge.errors import UsageError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class StopRules:
    """What ends an answer.

    Attributes:
        eos_ids: tokens that end it with "stop" and are not part of it.
        max_tokens: most tokens of the answer; the last of them ends it with "length".
        context_left: tokens that fit the context after the prompt (context minus prompt); the last of them ends it with
            "length".

    Raises:
        UsageError: not a single token may be emitted.
    """

    eos_ids: frozenset[int]
    max_tokens: int
    context_left: int

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max tokens must be at least 1, not {self.max_tokens}")
        if self.context_left < 1:
            raise UsageError(
                "the prompt fills the model's whole context: shorten it, or use a model with a longer context"
            )


class Stopper:
    """Counts the emitted tokens of one answer."""

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._limit = min(rules.max_tokens, rules.context_left)
        self._count = 0

    def push(self, token: int) -> FinishReason | None:
        """Take the next emitted token; the reason when the answer ends with it. Later ones are not part of the answer.

        "stop": the token is an end of sequence and not part of the answer. "length": it is the last token of the
        answer.
        """
        if token in self._rules.eos_ids:
            return "stop"
        self._count += 1
        return "length" if self._count >= self._limit else None
