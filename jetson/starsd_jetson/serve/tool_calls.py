"""The calls in what a model writes, read from the text in the form that its chat template taught it.

Three forms are read: `<tool_call>{...}</tool_call>` (Hermes, Qwen), a JSON object in the place of an answer (Llama 3),
and `[TOOL_CALLS][{...}, ...]` (Mistral). Text that only looks like a call is given out as the text that it is, so
nothing that the model wrote is lost. What is given out piece by piece, put together, does not depend on where the
pieces are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, TypeVar

import msgspec

_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"
_HERMES_CALL = re.compile(r'((?:"(?:[^"\\]|\\.)*"|[^"])*?)</tool_call>', re.DOTALL)
"""A call and its closing tag, which does not stand inside a string."""
_MISTRAL = "[TOOL_CALLS]"
_LLAMA = "<|python_tag|>"
_OTHER_FORMS = ("<function=", "[ARGS]")
"""Marks of templates whose calls begin like one of the three and are no JSON."""


class ToolForm(Enum):
    """How a model writes calls."""

    HERMES = (_HERMES, _HERMES_END)
    MISTRAL = (_MISTRAL,)
    LLAMA = (_LLAMA,)

    @property
    def marks(self) -> tuple[str, ...]:
        """What may stand around calls, as special tokens of the model or as plain text."""
        marks: tuple[str, ...] = self.value
        return marks

    @property
    def id_length(self) -> int:
        """Letters of a call's id. Templates of Mistral refuse ids of another length."""
        return 9 if self is ToolForm.MISTRAL else 24

    @property
    def id_prefix(self) -> str:
        """What stands before them."""
        return "" if self is ToolForm.MISTRAL else "call_"

    def reader(self, names: Collection[str], *, is_either: bool = False) -> ToolCallReader:
        """A reader for one answer.

        Args:
            names: of the functions that may be called.
            is_either: the answer is calls from its beginning, or has none.
        """
        if is_either:
            return _EitherReader(self, names)
        if self is ToolForm.HERMES:
            return _HermesReader()
        return _MistralReader() if self is ToolForm.MISTRAL else _LlamaReader(names)


def form_of(template: str) -> ToolForm | None:
    """The form that a chat template teaches; None where it is none of the three."""
    if any(mark in template for mark in _OTHER_FORMS):
        return None
    forms = (form for form in ToolForm if form.marks[0] in template)
    return next(forms, ToolForm.LLAMA if '"parameters":' in template else None)


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes:
        arguments: a JSON object, as the model wrote it.
    """

    name: str
    arguments: str

    @classmethod
    def of(cls, text: str | msgspec.Raw) -> Call | None:
        """From what a model wrote; None where it is no call."""
        written = _decoded(text, _Written)
        if written is None:
            return None
        given = [each for each in (written.arguments, written.parameters) if each is not msgspec.UNSET]
        arguments = bytes(given[0]).decode() if given else "{}"
        if arguments.startswith('"'):
            arguments = _decoded(arguments, str) or ""
        is_object = _decoded(arguments, dict[str, msgspec.Raw]) is not None
        return cls(written.name, arguments.strip()) if is_object else None


class _Written(msgspec.Struct):
    """A call as models write it."""

    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Value = TypeVar("Value")
Part: TypeAlias = "str | Call"
"""Of an answer, in order: text that is no call, or a call."""


class ToolCallReader(Protocol):
    """Reads one answer."""

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of the answer; the parts that are certain now."""

    def finish(self) -> list[Part]:
        """Nothing follows; the rest."""


class _HermesReader:
    """Calls between tags, with text before, between and after them."""

    def __init__(self) -> None:
        self._held = ""
        self._gap = ""
        """Spaces before the call that is being read."""
        self._is_call = False
        self._has_called = False

    def feed(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            if self._is_call:
                found = _HERMES_CALL.match(self._held) if _HERMES_END in self._held else None
                if found is None:
                    break
                parts += self._called(found[1], _HERMES_END)
                after = self._held[found.end() :]
            else:
                before, mark, after = self._held.partition(_HERMES)
                if not mark:
                    break
                sure = before.rstrip()
                parts += _said(sure)
                self._gap = before[len(sure) :]
            self._held, self._is_call = after, not self._is_call
        if not self._is_call:
            end = len(self._held) - _unsure(self._held, _HERMES)
            parts += _said(self._held[:end])
            self._held = self._held[end:]
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        while self._is_call and _HERMES_END in self._held and Call.of(self._held) is None:
            before, mark, after = self._held.partition(_HERMES_END)  # of a call with a string that never ends
            self._held, self._is_call = "", False
            parts += [*self._called(before, mark), *self.feed(after)]
        held, self._held = self._held, ""
        if self._is_call:  # an end of sequence in the place of the closing tag
            return [*parts, *self._called(held, "")]
        return parts if self._has_called and not held.strip() else [*parts, *_said(held)]

    def _called(self, text: str, end: str) -> list[Part]:
        call = Call.of(text)
        if call is None:
            return _said(f"{self._gap}{_HERMES}{text}{end}")
        self._has_called = True
        return [call]


class _WholeReader:
    """Calls that are the rest of the answer, and are read at its end."""

    def __init__(self) -> None:
        self._held = ""
        self._is_rest = False

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        calls = self._calls(held) if self._is_rest else []
        return [*calls] if calls else _said(held)

    def _calls(self, text: str) -> list[Call]:
        raise NotImplementedError


class _MistralReader(_WholeReader):
    """A list of calls after a mark."""

    def feed(self, text: str) -> list[Part]:
        self._held += text
        if self._is_rest:
            return []
        before, mark, _ = self._held.partition(_MISTRAL)
        sure = len(before.rstrip()) if mark else len(self._held) - _unsure(self._held, _MISTRAL)
        self._is_rest = bool(mark)
        given, self._held = self._held[:sure], self._held[sure:]
        return _said(given)

    def _calls(self, text: str) -> list[Call]:
        return _all_calls(_decoded(text.strip().removeprefix(_MISTRAL), list[msgspec.Raw]) or [])


class _LlamaReader(_WholeReader):
    """An answer that is one JSON object, or several with semicolons between them."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self._is_text = False

    def feed(self, text: str) -> list[Part]:
        if self._is_text:
            return _said(text)
        self._held += text
        begun = self._held.lstrip()
        if self._is_rest or begun.startswith(("{", _LLAMA)):
            self._is_rest = True
            return []
        if _LLAMA.startswith(begun):  # nothing but spaces, or the beginning of the mark
            return []
        self._is_text = True
        given, self._held = self._held, ""
        return _said(given)

    def _calls(self, text: str) -> list[Call]:
        rest, objects = text.strip().removeprefix(_LLAMA).strip(), list[str]()
        while rest:
            try:
                _, end = json.JSONDecoder().raw_decode(rest)
            except (ValueError, RecursionError):
                return []
            objects.append(rest[:end])
            rest = rest[end:].strip().removeprefix(";").strip()
        calls = _all_calls(objects)
        return calls if all(call.name in self._names for call in calls) else []


class _EitherReader:
    """An answer that is calls from its beginning, or text that may hold what looks like one."""

    def __init__(self, form: ToolForm, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._held = ""
        self._reader: ToolCallReader | None = None
        self._is_text = False

    def feed(self, text: str) -> list[Part]:
        if self._reader is not None:
            return self._reader.feed(text)
        if self._is_text:
            return _said(text)
        self._held += text
        begun, mark = self._held.lstrip(), self._form.marks[0]
        if len(begun) < len(mark) and mark.startswith(begun):
            return []
        held, self._held = self._held, ""
        if begun.startswith(mark):
            self._reader = self._form.reader(self._names)
            return self._reader.feed(held)
        self._is_text = True
        return _said(held)

    def finish(self) -> list[Part]:
        return _said(self._held) if self._reader is None else self._reader.finish()


def _all_calls(texts: Sequence[str | msgspec.Raw]) -> list[Call]:
    """Calls, if all of the texts are; none otherwise."""
    calls = [call for call in map(Call.of, texts) if call is not None]
    return calls if len(calls) == len(texts) else []


def _said(text: str) -> list[Part]:
    return [text] if text else []


def _unsure(text: str, mark: str) -> int:
    """Characters at the end that may be the beginning of a mark, and the spaces before them."""
    length = next((n for n in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
    before = text[: len(text) - length]
    return length + len(before) - len(before.rstrip())


def _decoded(text: str | msgspec.Raw, kind: type[Value]) -> Value | None:
    """JSON of this kind; None where it is not. A half of a surrogate pair, which JSON can escape and UTF-8 cannot hold,
    becomes a question mark.
    """
    try:
        if isinstance(text, str) and "\\u" in text:
            text = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace").decode()
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError):  # msgspec's errors and those of Unicode are of the first kind
        return None
