"""What was said in a chat, and how much of it the model reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

Messages = Sequence[Mapping[str, str]]

_KEPT_SHARE = 0.75
"""Of the room for the prompt, once it was full: what is left out changes the beginning of the text, which then has to
be read anew, so it must not happen at every turn."""

_ANSWER_SHARE = 0.5
"""Of the context, the most that is kept free for an answer."""


@dataclass(frozen=True)
class Turn:
    """A message and its answer.

    Attributes:
        finish_reason: why the answer ended, as in `Answer`.
    """

    message: str
    answer: str
    finish_reason: str

    @property
    def is_silent(self) -> bool:
        """Whether it was stopped before a word was said; the model is not told of it."""
        return not self.answer and self.finish_reason == "cancelled"


@dataclass(frozen=True)
class Conversation:
    """The turns so far.

    Attributes:
        system: the system prompt; without one the chat template may write its own.
        turns: all of them, the oldest first.
        left_out: so many of the oldest the model no longer reads.
    """

    system: str = ""
    turns: tuple[Turn, ...] = ()
    left_out: int = 0

    def messages(self, message: str) -> Messages:
        """What the model reads: system prompt, turns that are not left out, and this message."""
        read = [("system", self.system)] if self.system else []
        for turn in self.turns[self.left_out :]:
            if not turn.is_silent:
                read += [("user", turn.message), ("assistant", turn.answer)]
        return [{"role": role, "content": content} for role, content in (*read, ("user", message))]

    def with_turn(self, turn: Turn) -> Conversation:
        """One turn later."""
        return replace(self, turns=(*self.turns, turn))

    def without_last(self) -> Conversation:
        """One turn earlier."""
        turns = self.turns[:-1]
        return replace(self, turns=turns, left_out=min(self.left_out, len(turns)))

    def anew(self) -> Conversation:
        """Nothing said yet; the system prompt stays."""
        return Conversation(self.system)


def fit(
    conversation: Conversation, message: str, encode: Callable[[Messages], list[int]], context: int, max_tokens: int
) -> tuple[Conversation, list[int]]:
    """The prompt for a message. Where it leaves too little room for an answer, the oldest turns are left out, never the
    system prompt.

    Args:
        encode: the tokens of messages, by the model's chat template.
        context: most tokens of prompt and answer together.
        max_tokens: most tokens of the answer.

    Returns:
        The conversation with what is left out now, and the prompt; one that is still too long has to be refused.

    Raises:
        UsageError: the chat template refuses the messages.
    """
    room = context - min(max_tokens, int(_ANSWER_SHARE * context))
    prompt = encode(conversation.messages(message))
    if len(prompt) > room:
        while len(prompt) > _KEPT_SHARE * room and conversation.left_out < len(conversation.turns):
            conversation = replace(conversation, left_out=conversation.left_out + 1)
            prompt = encode(conversation.messages(message))
    return conversation, prompt
