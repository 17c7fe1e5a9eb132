"""The body of a response of the Responses API, and the events of its stream.

The output is a list of items: messages and calls of functions, in the order in which the model wrote them. Each event
has a number, and an item is closed before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starsd_edge.speculation.sampling import TokenLogprob
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import Answer, Piece
from starsd_jetson.serve.chat import Chunk, Head
from starsd_jetson.serve.choices import Choices, IdentifiedCall, chat_logprobs
from starsd_jetson.serve.schema import ResponsesBody, to_json_value

_STATUS = {"length": "incomplete"}
_ID_LENGTH = 24


@dataclass
class _Message:
    """The message that is being written."""

    id: str
    place: int
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ResponseWriter:
    """Writes one response; see `starsd_jetson.serve.chat.Writer`.

    Args:
        asked: the request, much of which is part of the response.
        new_id: a random id of so many letters and digits.
    """

    def __init__(
        self, head: Head, choices: Choices, tokenizer: Tokenizer, asked: ResponsesBody, new_id: Callable[[int], str]
    ) -> None:
        self.choices = choices
        self._head = head
        self._tokenizer = tokenizer
        self._asked = asked
        self._new_id = new_id
        self._wants_logprobs = choices.prepared.requests[0].logprobs is not None
        self._items: list[Mapping[str, Any]] = []
        self._message: _Message | None = None
        self._unshown: list[TokenLogprob] = []
        """Of tokens whose text has not come yet."""
        self._events = 0

    def begin(self) -> Sequence[Chunk]:
        """The events that say that the response is being written."""
        body = self._body("in_progress")
        return [self._event(f"response.{name}", response=body) for name in ("created", "in_progress")]

    def take(self, number: int, event: Piece | Answer) -> Sequence[Chunk]:
        """See `Writer`."""
        delta = self.choices.take(number, event)
        self._unshown += delta.logprobs
        events: list[Chunk] = []
        for part in delta.parts:
            events += self._called(part) if isinstance(part, IdentifiedCall) else self._said(part)
        if isinstance(event, Answer):
            if self._unshown or not self._items:
                events += self._said("")
            events += self._close()
            events.append(self._event(f"response.{self._status}", response=self.whole()))
        return events

    def whole(self) -> Chunk:
        """See `Writer`."""
        prompt, reused, answer = self.choices.usage()
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": reused, "cache_write_tokens": 0},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        }
        is_cut = self._status == "incomplete"
        return self._body(self._status) | {
            "output": list(self._items),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": usage,
            "metrics": self.choices.metrics(),
        }

    @property
    def _status(self) -> str:
        return _STATUS.get(self.choices.all[0].finish_reason or "", "completed")

    def _body(self, status: str) -> dict[str, Any]:
        asked, sampling = self._asked, self.choices.prepared.requests[0].sampling
        form = None if asked.text is None else asked.text.format
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self._head.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"} if form is None else to_json_value(form)},
            "tool_choice": to_json_value(asked.tool_choice),
            "tools": [to_json_value(tool) for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _opened(self) -> tuple[list[Chunk], _Message]:
        """The message that is being written; begins one if there is none."""
        if self._message is not None:
            return [], self._message
        self._message = message = _Message(f"msg_{self._new_id(_ID_LENGTH)}", len(self._items))
        item = self._message_item(message, "in_progress", [])
        return [
            self._event("response.output_item.added", output_index=message.place, item=item),
            self._of(message, "response.content_part.added", part=self._content(message)),
        ], message

    def _said(self, text: str) -> list[Chunk]:
        """Go on with the message."""
        events, message = self._opened()
        logprobs, self._unshown = self._unshown, []
        message.text += text
        message.logprobs += logprobs
        if text or logprobs:
            shown = chat_logprobs(self._tokenizer, logprobs)
            events.append(self._of(message, "response.output_text.delta", delta=text, logprobs=shown))
        return events

    def _close(self) -> list[Chunk]:
        """End the message, if there is one."""
        message, self._message = self._message, None
        if message is None:
            return []
        content = self._content(message)
        item = self._message_item(message, self._status, [content])
        self._items.append(item)
        logprobs = chat_logprobs(self._tokenizer, message.logprobs)
        return [
            self._of(message, "response.output_text.done", text=message.text, logprobs=logprobs),
            self._of(message, "response.content_part.done", part=content),
            self._event("response.output_item.done", output_index=message.place, item=item),
        ]

    def _called(self, call: IdentifiedCall) -> list[Chunk]:
        """A call, which comes whole. Its tokens are part of no message."""
        events, self._unshown = self._close(), []
        place, arguments = len(self._items), call.call.arguments
        item = {
            "id": f"fc_{self._new_id(_ID_LENGTH)}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.call.name,
            "arguments": arguments,
        }
        self._items.append(item)
        at = {"item_id": item["id"], "output_index": place}
        begun = item | {"status": "in_progress", "arguments": ""}
        done = {"arguments": arguments, "name": call.call.name}
        return [
            *events,
            self._event("response.output_item.added", output_index=place, item=begun),
            self._event("response.function_call_arguments.delta", **at, delta=arguments),
            self._event("response.function_call_arguments.done", **at, **done),
            self._event("response.output_item.done", output_index=place, item=item),
        ]

    def _content(self, message: _Message) -> dict[str, Any]:
        logprobs = chat_logprobs(self._tokenizer, message.logprobs) if self._wants_logprobs else []
        return {"type": "output_text", "text": message.text, "annotations": [], "logprobs": logprobs}

    def _message_item(self, message: _Message, status: str, content: Sequence[Any]) -> dict[str, Any]:
        return {"id": message.id, "type": "message", "status": status, "role": "assistant", "content": list(content)}

    def _of(self, message: _Message, kind: str, **fields: Any) -> Chunk:
        return self._event(kind, item_id=message.id, output_index=message.place, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Chunk:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return event
