"""Ctrl-C while an answer is made: pressed once it ends the answer, pressed again the program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""The exit code."""


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
