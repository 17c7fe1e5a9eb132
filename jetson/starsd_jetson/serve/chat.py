"""The bodies of chat completions and of completions, whole and as the chunks of a stream.

In a stream, the first chunk of a choice names the role, `finish_reason` is null until the last one, and usage comes, if
asked for, in a chunk without choices. Acceptance is part of the last chunk.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import Answer, Piece
from starsd_jetson.serve.choices import (
    Choice,
    Choices,
    Delta,
    IdentifiedCall,
    chat_logprobs,
    shown_logprob,
    token_text,
    usage_object,
)

Chunk = Mapping[str, Any]


@dataclass(frozen=True)
class Head:
    """What every body of a response begins with.

    Attributes:
        id: of the response.
        created: seconds since 1970.
        fingerprint: names the model's weights: with the same seed the same text comes while it stays the same.
    """

    id: str
    created: int
    model: str
    fingerprint: str

    def body(self, kind: str) -> dict[str, Any]:
        """The beginning of a body."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Writer(Protocol):
    """Writes one response, from the events of its answers."""

    @property
    def choices(self) -> Choices:
        """What is known so far."""

    def begin(self) -> Sequence[Chunk]:
        """Chunks before the first event."""

    def take(self, number: int, event: Piece | Answer) -> Sequence[Chunk]:
        """Chunks for an event; the last ones follow the last event."""

    def whole(self) -> Chunk:
        """The response in one piece, once all events were taken."""


class _OpenAiWriter:
    """What the two kinds have in common."""

    kind = chunk_kind = ""

    def __init__(self, head: Head, choices: Choices, tokenizer: Tokenizer) -> None:
        self.choices = choices
        self._head = head
        self._tokenizer = tokenizer
        self._wants_logprobs = choices.prepared.requests[0].logprobs is not None

    def begin(self) -> Sequence[Chunk]:
        """Nothing: a choice begins with its first event."""
        return ()

    def take(self, number: int, event: Piece | Answer) -> Sequence[Chunk]:
        """See `Writer`."""
        choice = self.choices.all[number]
        is_new = not self._has_begun(choice)
        chunks = [self._chunk(each) for each in self._deltas(choice, self.choices.take(number, event), is_new)]
        if self.choices.is_done:
            self._end(chunks)
        return chunks

    def whole(self) -> Chunk:
        """See `Writer`."""
        return self._head.body(self.kind) | {
            "choices": [self._whole_choice(choice) for choice in self.choices.all],
            "usage": usage_object(self.choices),
            "metrics": self.choices.metrics(),
        }

    def _chunk(self, choice: Mapping[str, Any] | None) -> dict[str, Any]:
        chunk = self._head.body(self.chunk_kind) | {"choices": [] if choice is None else [choice]}
        return chunk | {"usage": None} if self.choices.prepared.include_usage else chunk

    def _end(self, chunks: list[dict[str, Any]]) -> None:
        if self.choices.prepared.include_usage:
            chunks.append(self._chunk(None) | {"usage": usage_object(self.choices)})
        chunks[-1]["metrics"] = self.choices.metrics()

    def _with_ids(self, shape: dict[str, Any], choice: Choice, ids: Sequence[int], is_first: bool) -> dict[str, Any]:
        """With token ids, where they were asked for; those of the prompt once for each choice."""
        if not self.choices.prepared.show_ids:
            return shape
        shape["token_ids"] = list(ids)
        if is_first:
            shape["prompt_token_ids"] = list(self.choices.prepared.requests[choice.number].prompt)
        return shape

    def _has_begun(self, choice: Choice) -> bool:
        raise NotImplementedError

    def _deltas(self, choice: Choice, delta: Delta, is_new: bool) -> Sequence[dict[str, Any]]:
        raise NotImplementedError

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError


class ChatWriter(_OpenAiWriter):
    """A chat completion."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, head: Head, choices: Choices, tokenizer: Tokenizer) -> None:
        super().__init__(head, choices, tokenizer)
        self._begun: set[int] = set()

    def _has_begun(self, choice: Choice) -> bool:
        return choice.number in self._begun

    def _deltas(self, choice: Choice, delta: Delta, is_new: bool) -> Sequence[dict[str, Any]]:
        shapes = []
        if is_new:
            self._begun.add(choice.number)
            role = {"role": "assistant", "content": "", "refusal": None}
            shapes.append(self._with_ids(self._shape(choice, role), choice, (), is_first=True))
        if delta.text or delta.logprobs or delta.ids or delta.calls:
            said: dict[str, Any] = {"content": delta.text} if delta.text or not delta.calls else {}
            if delta.calls:
                first = len(choice.calls) - len(delta.calls)
                said["tool_calls"] = [{"index": first + i, **_call(each)} for i, each in enumerate(delta.calls)]
            shape = self._shape(choice, said)
            if self._wants_logprobs:
                shape["logprobs"] = self._logprobs(delta.logprobs)
            if self.choices.prepared.show_sources:
                shape["token_sources"] = [list(pair) for pair in delta.sources]
            shapes.append(self._with_ids(shape, choice, delta.ids, is_first=False))
        if delta.finish_reason is not None:
            shapes.append(self._shape(choice, {}) | {"finish_reason": delta.finish_reason})
        return shapes

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [_call(call) for call in choice.calls]
        shape = {
            "index": choice.number,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs) if self._wants_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        return self._with_ids(shape, choice, choice.ids, is_first=True)

    def _shape(self, choice: Choice, delta: Mapping[str, Any]) -> dict[str, Any]:
        return {"index": choice.number, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[Any]) -> dict[str, Any]:
        return {"content": chat_logprobs(self._tokenizer, logprobs), "refusal": None}


class _Place:
    """How many characters of a text are whole."""

    def __init__(self) -> None:
        self.characters = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        """Go on by so many bytes."""
        self.characters += len(self._decoder.decode(data))


class CompletionWriter(_OpenAiWriter):
    """A completion, with log-probabilities in the form that came before that of chats."""

    kind = chunk_kind = "text_completion"

    def __init__(self, head: Head, choices: Choices, tokenizer: Tokenizer) -> None:
        super().__init__(head, choices, tokenizer)
        self._places = [_Place() for _ in choices.all]

    def _has_begun(self, choice: Choice) -> bool:
        return bool(choice.ids)

    def _deltas(self, choice: Choice, delta: Delta, is_new: bool) -> Sequence[dict[str, Any]]:
        if delta.is_empty:
            return ()
        logprobs = self._logprobs(choice.number, delta) if self._wants_logprobs else None
        shape = self._shape(choice, delta.text, logprobs, delta.finish_reason)
        return (self._with_ids(shape, choice, delta.ids, is_new and bool(delta.ids)),)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        self._places[choice.number] = _Place()
        everything = Delta(logprobs=tuple(choice.logprobs))
        logprobs = self._logprobs(choice.number, everything) if self._wants_logprobs else None
        shape = self._shape(choice, choice.text, logprobs, choice.finish_reason)
        return self._with_ids(shape, choice, choice.ids, is_first=True)

    def _shape(self, choice: Choice, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return {"index": choice.number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, number: int, delta: Delta) -> dict[str, Any]:
        offsets = []
        for each in delta.logprobs:
            offsets.append(self._places[number].characters)
            if not self._tokenizer.is_silent(each.token):
                self._places[number].add(self._tokenizer.bytes_of(each.token))
        return {
            "tokens": [token_text(self._tokenizer, each.token) for each in delta.logprobs],
            "token_logprobs": [shown_logprob(each.logprob) for each in delta.logprobs],
            "top_logprobs": [
                {token_text(self._tokenizer, token): shown_logprob(logprob) for token, logprob in each.top}
                for each in delta.logprobs
            ],
            "text_offset": offsets,
        }


def _call(call: IdentifiedCall) -> dict[str, Any]:
    function = {"name": call.call.name, "arguments": call.call.arguments}
    return {"id": call.id, "type": "function", "function": function}
