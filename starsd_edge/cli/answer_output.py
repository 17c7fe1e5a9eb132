"""How answers leave the program: text as it comes, or one JSON object per answer; figures and notices beside it on
standard error.

The words come from a model and, in notices, from a hub: on a terminal, control characters in them are shown, not
obeyed.
"""

from __future__ import annotations

import json
import threading
import unicodedata
from typing import TYPE_CHECKING, Protocol, TextIO

from starsd_edge.cli.sampling_options import sampling_record
from starsd_edge.telemetry.summary import Figures, LinkFigures

if TYPE_CHECKING:
    from starsd_edge.speculation.sampling import SamplingParams
    from starsd_jetson.decoder import Answer, Piece

_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""Text that cannot drive a terminal: C0 and C1 control characters but newline and tab become \x1b and the like."""
    return "".join(
        character if character in _KEPT or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


class AnswerOutput(Protocol):
    """Where answers go."""

    def begin(self, number: int, of: int, prompt: str) -> None:
        """An answer begins."""

    def piece(self, piece: Piece) -> None:
        """More of it."""

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """It is over."""

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """All answers are over."""

    def notice(self, line: str) -> None:
        """A line about the link. Called from another thread."""

    def failure(self, number: int, of: int, message: str) -> None:
        """A prompt could not be answered."""


class JsonOutput:
    """One JSON object per answer on `out`, nothing else there."""

    record_type: str | None = None
    """What answers are marked with, where other records stand between them."""

    def __init__(self, out: TextIO, err: TextIO, name: str, sampling: SamplingParams) -> None:
        self._out = out
        self._err = err
        self._name = name
        self._sampling = sampling

    def begin(self, number: int, of: int, prompt: str) -> None:
        """Nothing yet."""

    def piece(self, piece: Piece) -> None:
        """Nothing yet."""

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """Write the object."""
        record = {
            "target": self._name,
            "prompt": number,
            "text": answer.text,
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "seed": self._sampling.seed,
            "sampling": sampling_record(self._sampling),
            "figures": figures.named(link),
        }
        self._write(record if self.record_type is None else {"type": self.record_type, **record})

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """The answers carry their figures."""

    def notice(self, line: str) -> None:
        """To standard error."""
        self._err.write(f"{printable(line)}\n")

    def failure(self, number: int, of: int, message: str) -> None:
        """To standard error."""
        self._err.write(_failure(number, of, message))

    def _write(self, record: dict[str, object]) -> None:
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()


class StreamJsonOutput(JsonOutput):
    """JSON objects on `out`, nothing else there: {"type": "text", "piece": ...} as the text comes, then the answer."""

    record_type = "answer"

    def piece(self, piece: Piece) -> None:
        """Write its text at once."""
        if piece.text:
            self._write({"type": "text", "piece": piece.text})


class TextOutput:
    """The text of the answers on `out` as it comes; figures on `err`."""

    def __init__(self, out: TextIO, err: TextIO, seed: int) -> None:
        self._out = out
        self._err = err
        self._seed = seed
        self._lock = threading.Lock()
        self._inside_line = False

    def begin(self, number: int, of: int, prompt: str) -> None:
        """Say which prompt it is, where there are several."""
        if of > 1:
            start = " ".join(printable(prompt).split())
            self._say(f"[{number}/{of}] {start[:70]}{'…' if len(start) > 70 else ''}")

    def piece(self, piece: Piece) -> None:
        """Write its text at once."""
        if piece.text:
            with self._lock:
                self._out.write(self._shown(piece.text))
                self._out.flush()
                self._inside_line = not piece.text.endswith("\n")

    def end(self, number: int, answer: Answer, figures: Figures, link: LinkFigures) -> None:
        """End the line, then the figures."""
        with self._lock:
            self._out.write("\n")
            self._out.flush()
            self._inside_line = False
        self._table([("finish_reason", answer.finish_reason), *figures.lines(link), ("seed", str(self._seed))])

    def total(self, figures: Figures, link: LinkFigures) -> None:
        """The sums, where there is more than one answer."""
        if figures.answers > 1:
            self._say(f"{figures.answers} answers together")
            self._table(figures.lines(link))

    def notice(self, line: str) -> None:
        """On a line of its own, also in the middle of an answer."""
        self._say(printable(line))

    def failure(self, number: int, of: int, message: str) -> None:
        """On a line of its own."""
        self._say(_failure(number, of, message).rstrip("\n"))

    def _shown(self, text: str) -> str:
        if self._out.isatty():
            text = printable(text)
        encoding = self._out.encoding or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)

    def _say(self, line: str) -> None:
        with self._lock:
            if self._inside_line and self._out.isatty():
                self._out.write("\n")
                self._out.flush()
                self._inside_line = False
            self._err.write(f"{line}\n")
            self._err.flush()

    def _table(self, lines: list[tuple[str, str]]) -> None:
        from rich.console import Console
        from rich.text import Text

        width = max(len(label) for label, _ in lines)
        with self._lock:
            console = Console(file=self._err, soft_wrap=True)
            for label, text in lines:
                console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), text))


def _failure(number: int, of: int, message: str) -> str:
    where = f"prompt {number} of {of}: " if of > 1 else ""
    return f"error: {where}{printable(' '.join(message.split()))}\n"
