"""What becomes of each choice, and the figures of a response: the same for all its forms, whole or piece by piece.

A whole response is put together from the very deltas that a stream gives out, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from starsd_edge.speculation.sampling import TokenLogprob
from starsd_edge.telemetry.rounds import RoundStats
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import Answer, Piece
from starsd_jetson.serve.prepare import Prepared
from starsd_jetson.serve.tool_calls import Call, Part, ToolForm

_LEAST_LOGPROB = -9999.0
"""In the place of minus infinity, which JSON cannot say; OpenAI's API has the same number."""


@dataclass(frozen=True)
class IdentifiedCall:
    """A call of a function, with the name that its result will be given under."""

    id: str
    call: Call


@dataclass(frozen=True)
class Delta:
    """What one event added to a choice.

    Attributes:
        parts: text and calls, in order.
        sources: the text by what drafted it, where that is asked for: pairs of text and source.
        finish_reason: of the last one: "stop", "length" or "tool_calls"; None before.
    """

    parts: tuple[str | IdentifiedCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    ids: tuple[int, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """All text of it, joined."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[IdentifiedCall]:
        """All calls of it."""
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return self == Delta()


@dataclass
class Choice:
    """A choice as far as it is known.

    Attributes:
        number: of its request.
    """

    number: int
    text: str = ""
    calls: list[IdentifiedCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    answer: Answer | None = None


class Choices:
    """All choices of one response.

    Args:
        prepared: what was asked for.
        new_id: a random id of so many letters and digits.
    """

    def __init__(self, prepared: Prepared, new_id: Callable[[int], str]) -> None:
        self.prepared = prepared
        self.all = [Choice(number) for number in range(len(prepared.requests))]
        self._new_id = new_id
        tools = prepared.tools
        self._readers = [None if tools is None else tools.reader() for _ in self.all]

    @property
    def is_done(self) -> bool:
        """Whether every answer has ended."""
        return all(choice.answer is not None for choice in self.all)

    def take(self, number: int, event: Piece | Answer) -> Delta:
        """What an event adds to a choice. It is part of the choice now."""
        choice, reader = self.all[number], self._readers[number]
        if isinstance(event, Piece):
            parts = self._parts([event.text] if reader is None else reader.feed(event.text))
            ids = event.tokens if self.prepared.show_ids else ()
            sources = tuple((span.text, span.origin) for span in event.spans) if self.prepared.show_sources else ()
            delta = Delta(parts, event.logprobs, ids, sources)
        else:
            parts = self._parts([] if reader is None else reader.finish())
            has_calls = bool(choice.calls or Delta(parts).calls)
            reason = "tool_calls" if has_calls and event.finish_reason == "stop" else event.finish_reason
            delta = Delta(parts, finish_reason=reason)
            choice.answer = event
        choice.text += delta.text
        choice.calls += delta.calls
        choice.logprobs += delta.logprobs
        choice.ids += delta.ids
        choice.finish_reason = delta.finish_reason
        return delta

    def usage(self) -> tuple[int, int, int]:
        """Tokens of all prompts, those of them that were not computed again, and tokens of all answers."""
        answers = self._answers()
        per_prompt = len(answers) // self.prepared.prompts
        prompts = answers[::per_prompt]  # choices of one prompt share it
        return (
            sum(answer.prompt_tokens for answer in prompts),
            sum(answer.reused_tokens for answer in prompts),
            sum(len(answer.token_ids) for answer in answers),
        )

    def metrics(self) -> dict[str, Any]:
        """The object `metrics` of a response."""
        stats = RoundStats()
        for answer in self._answers():
            stats.merge(answer.stats)
        decode_s = sum(answer.decode_s for answer in self._answers())
        return {
            "speculative_decoding": speculation(stats, self.prepared.requests[0].shape.max_depth),
            "speed": {
                "tokens_per_s": stats.emitted / decode_s if decode_s > 0 else None,
                "plain_tokens_per_s": stats.plain_tokens_per_s,
            },
        }

    def _answers(self) -> list[Answer]:
        return [choice.answer for choice in self.all if choice.answer is not None]

    def _parts(self, parts: Sequence[Part]) -> tuple[str | IdentifiedCall, ...]:
        return tuple(self._identified(part) if isinstance(part, Call) else part for part in parts if part)

    def _identified(self, call: Call) -> IdentifiedCall:
        form = self.prepared.tools.form if self.prepared.tools else ToolForm.HERMES
        return IdentifiedCall(form.id_prefix + self._new_id(form.id_length), call)


def speculation(stats: RoundStats, max_depth: int) -> dict[str, Any]:
    """How drafting went, in the field names that vLLM uses and benchmark tools read.

    A step is a verify pass of a draft. Passes without one are not counted.

    Args:
        max_depth: most draft tokens that a step may accept.
    """
    steps = stats.drafted_rounds
    reached = [steps, *stats.level_hits, 0]
    histogram = {
        str(accepted): count - following
        for accepted, (count, following) in enumerate(pairwise(reached))
        if count > following
    }
    return {
        "num_spec_tokens": max_depth,
        "num_spec_steps": steps,
        "num_draft_tokens": stats.drafted,
        "num_accepted_draft_tokens": stats.accepted,
        "mean_acceptance_length": 1 + stats.accepted / steps if steps else 1.0,
        "draft_acceptance_rate": stats.accepted / stats.drafted if stats.drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_draft_tokens_per_position": list(stats.level_trials),
        "num_accepted_tokens_per_position": list(stats.level_hits),
        "acceptance_rate_per_position": [round(rate, 4) for rate in stats.survival],
    }


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as a response names it. A part of a character is written byte by byte."""
    data = tokenizer.bytes_of(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chats and responses have them."""
    return [
        {
            **_named(tokenizer, each.token, each.logprob),
            "top_logprobs": [_named(tokenizer, token, logprob) for token, logprob in each.top],
        }
        for each in logprobs
    ]


def _named(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token),
        "logprob": shown_logprob(logprob),
        "bytes": list(tokenizer.bytes_of(token)),
    }


def shown_logprob(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, _LEAST_LOGPROB)


def usage_object(choices: Choices) -> Mapping[str, Any]:
    """The usage of chats and completions."""
    prompt, reused, answer = choices.usage()
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": reused},
    }
