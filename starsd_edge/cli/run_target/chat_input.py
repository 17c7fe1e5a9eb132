'''Lines of a chat: edited by readline at a terminal, read as they are from anything else; Ctrl-C while they are read.

A message of several lines stands between """ and """, each at the beginning or the end of a line.
'''

from __future__ import annotations

import signal
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TextIO

from starsd_edge.cli.streams import TextStreams

PROMPT = "> "
_MORE = "... "
_FENCE = '"""'

ReadLine = Callable[[str], str]
"""A prompt to the line typed after it, without its end. Raises EOFError when there is no more."""


@dataclass(frozen=True)
class Entry:
    """What the user entered at once.

    Attributes:
        is_fenced: it stood between quotes and is a message whatever it begins with.
    """

    text: str
    is_fenced: bool


class EntryDroppedError(KeyboardInterrupt):
    """Ctrl-C after something was typed: that is gone, and the press has had its use."""


def read_entry(read_line: ReadLine) -> Entry:
    """The next line, or all between two fences; the end of the input ends the latter too.

    Raises:
        EOFError: there is no more.
        EntryDroppedError: Ctrl-C took away what was typed.
        KeyboardInterrupt: Ctrl-C, and nothing was typed.
    """
    line = read_line(PROMPT)
    start = line.lstrip()
    if not start.startswith(_FENCE):
        return Entry(line, is_fenced=False)
    lines = [start.removeprefix(_FENCE)]
    while not lines[-1].rstrip().endswith(_FENCE):
        try:
            lines.append(read_line(_MORE))
        except EOFError:
            break
        except KeyboardInterrupt:
            raise EntryDroppedError from None
    else:
        lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
    return Entry("\n".join(lines).strip("\n"), is_fenced=True)


def line_reader(
    stdin: TextIO, streams: TextStreams, is_terminal: bool, words: Sequence[str], interrupts: Interrupts
) -> ReadLine:
    """Reads lines from there.

    Args:
        is_terminal: standard input and output are one, and somebody sits at it.
        words: completed by the tab key.
        interrupts: learns how to see what is typed.
    """
    # Bytes that are no UTF-8 make a message that is refused, not the end of the chat.
    if hasattr(stdin, "reconfigure"):
        stdin.reconfigure(errors="surrogateescape")
    return _terminal_reader(streams, words, interrupts) if is_terminal else _plain_reader(stdin)


def _plain_reader(stdin: TextIO) -> ReadLine:
    def read(prompt: str) -> str:
        line = stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    return read


def _terminal_reader(streams: TextStreams, words: Sequence[str], interrupts: Interrupts) -> ReadLine:
    readline = _editing(words)
    typed = interrupts.typed = readline.get_line_buffer if readline else None

    def read(prompt: str) -> str:
        with streams.asking(prompt, typed):
            try:
                return input(prompt)
            except (EOFError, KeyboardInterrupt):
                streams.end_line()
                raise

    return read


def _editing(words: Sequence[str]) -> ModuleType | None:
    """Line editing, with the lines of this chat for the arrow keys; they are written nowhere."""
    try:
        import readline
    except ImportError:  # a Python without it reads lines as the terminal gives them
        return None

    def complete(text: str, state: int) -> str | None:
        at_start = readline.get_begidx() == 0
        found = [word for word in words if at_start and text and word.startswith(text)]
        return f"{found[state]} " if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n")
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")  # several lines pasted are one message
    return readline


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[None]:
    """What is typed in this block is not shown yet: it waits for the next line, and the answer stays legible."""
    before = termios.tcgetattr(stdin)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)


class Interrupts:
    """Ctrl-C: while a line is read it raises KeyboardInterrupt, at any other time it is remembered.

    Attributes:
        typed: what stands in the line so far; None where nobody knows, and then something may.
    """

    def __init__(self) -> None:
        self.typed: Callable[[], str] | None = None
        self._is_reading = False
        self._pressed = False

    def __call__(self) -> bool:
        """Whether it was pressed since the last line was read."""
        return self._pressed

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For this block."""
        before = signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A line is read in this block."""
        self._pressed = False
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    def _press(self, signum: int, frame: FrameType | None) -> None:
        if self._is_reading:
            # Asked here: once this has been raised, the line is no longer there.
            raise KeyboardInterrupt if self.typed is not None and not self.typed() else EntryDroppedError
        self._pressed = True


INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""


class Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self) -> bool:
        return self.pressed


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Ctrl-C ends the answer after the pass that is running; pressed again, it ends the program at once."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def press(signum: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
