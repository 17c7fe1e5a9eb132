"""Text of a model on one stream and lines about it on another, so that neither garbles the other on a terminal.

The words come from a model, and in lines about the link from a hub: on a terminal, control characters in them are
shown, not obeyed.
"""

from __future__ import annotations

import io
import os
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_KEPT = "\n\t"
_ERASE_LINE = "\r\x1b[K"
_PLAIN = "\x1b[0m"


def printable(text: str) -> str:
    r"""Text that cannot drive a terminal: C0 and C1 control characters but newline and tab become \x1b and the like."""
    return "".join(
        character if character in _KEPT or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


class LineWriter(io.TextIOBase):
    """A stream whose every line is said by `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        """Say these lines."""
        for line in text.splitlines():
            self._say(printable(line))
        return len(text)


def takes_colour(stream: TextIO) -> bool:
    """Whether colours belong there: it is a terminal that has them, and NO_COLOR is not set."""
    from rich.console import Console

    console = Console(file=stream)
    return console.color_system is not None and not console.no_color


def shows_panels(console: Console) -> bool:
    """Whether a picture can be drawn there again and again: it is a terminal that moves its cursor."""
    return console.is_terminal and not console.is_dumb_terminal and bool(os.environ.get("TERM"))


@dataclass(frozen=True)
class _Asking:
    """The user is being asked for a line.

    Attributes:
        prompt: what stands before it.
        typed: what stands in it so far; None where nobody knows.
    """

    prompt: str
    typed: Callable[[], str] | None


class TextStreams:
    """May be used from several threads."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._lock = threading.Lock()
        self._inside_line = False
        self._asking: _Asking | None = None
        self._held: list[str] = []

    def write(self, text: str, colour: str = "") -> None:
        """A piece of the model's text, at once.

        Args:
            colour: an SGR sequence for it.
        """
        if not text:
            return
        with self._lock:
            self._out.write(f"{colour}{self._shown(text)}{_PLAIN}" if colour else self._shown(text))
            self._out.flush()
            self._inside_line = not text.endswith("\n")

    def end_line(self) -> None:
        """The text is over."""
        with self._lock:
            self._end_line()

    def say(self, line: str) -> None:
        """A line of its own on the other stream, also in the middle of the text or of what the user types: where
        something is typed, it waits until the user is done.
        """
        with self._lock:
            asking = self._asking
            if asking is not None and self._err.isatty():
                if asking.typed is None or asking.typed():
                    self._held.append(line)
                else:
                    self._tell(f"{_ERASE_LINE}{line}\n{asking.prompt}")
                return
            if self._inside_line and self._out.isatty():
                self._end_line()
            self._tell(f"{line}\n")

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Labels and texts on the other stream: a line each, which a terminal breaks within its column."""
        with self._lock:
            if self._err.isatty():
                self._draw(rows)
            else:
                width = max(len(label) for label, _ in rows)
                self._tell("".join(f"  {label:<{width}}  {text}\n" for label, text in rows))

    @contextmanager
    def asking(self, prompt: str, typed: Callable[[], str] | None) -> Iterator[None]:
        """While the block runs, a line is read from the terminal.

        Args:
            prompt: what stands before it.
            typed: what stands in it so far; None where nobody knows.
        """
        with self._lock:
            self._asking = _Asking(prompt, typed)
        try:
            yield
        finally:
            with self._lock:
                self._asking = None
                held, self._held = self._held, []
            for line in held:
                self.say(line)

    def _draw(self, rows: Sequence[tuple[str, str]]) -> None:
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        for label, text in rows:
            grid.add_row(Text(label), Text(text))
        Console(file=self._err).print(Padding(grid, (0, 0, 0, 2)))

    def _shown(self, text: str) -> str:
        if self._out.isatty():
            text = printable(text)
        encoding = self._out.encoding or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)

    def _end_line(self) -> None:
        self._out.write("\n")
        self._out.flush()
        self._inside_line = False

    def _tell(self, text: str) -> None:
        self._err.write(text)
        self._err.flush()
