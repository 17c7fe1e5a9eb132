"""A model's chat template: a list of messages to the text that the model was trained on.

Templates come with the model and are programs. They run in Jinja's immutable sandbox, and what they write is cut off at
a limit, so that a template or a message can neither reach the process nor fill its memory with output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from starsd_edge.errors import BundleError, UsageError, one_line

MAX_RENDERED_CHARACTERS = 4 * 2**20
"""Longer than the text of any context a bundle can have, short enough to hold in memory for every request."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; when prompting it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text, with the helpers that templates of the Hugging Face ecosystem expect.
        special_tokens: variables such as `bos_token`.
        now: the clock behind `strftime_now`.

    Attributes:
        source: the text.
        takes_tools: whether it writes out functions that the model may call.

    Raises:
        BundleError: the text is not a Jinja template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise BundleError(f"the chat template is broken at line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)
        self.source = source
        self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: bool = True,
    ) -> str:
        """The prompt for these messages, ending where the assistant's answer begins.

        Args:
            messages: each with "role" and "content".
            tools: functions that the model may call, each as {"type": "function", "function": {...}}.
            prompt: False leaves out the beginning of an answer.

        Raises:
            UsageError: the template refuses the messages, or its output is beyond `MAX_RENDERED_CHARACTERS`.
        """
        parts: list[str] = []
        left = MAX_RENDERED_CHARACTERS
        try:
            # Ours come last: a model may call a token of its own like one of them.
            names = {"messages": messages, "add_generation_prompt": prompt, "tools": tools, "documents": None}
            for part in self._template.generate(self._special_tokens | names):
                left -= len(part)
                if left < 0:
                    break
                parts.append(part)
        except Exception as error:  # whatever a template's own code can raise
            raise UsageError(f"the model's chat template refuses these messages: {one_line(error)}") from error
        if left < 0:
            raise UsageError(f"the chat is longer than {MAX_RENDERED_CHARACTERS} characters: shorten its messages")
        return "".join(parts)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


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
