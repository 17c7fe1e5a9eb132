"""Bytes of a terminal in cbreak mode to names of keys."""

from __future__ import annotations

import re

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "esc",
}
_KEY = re.compile(rb"\x1b(?:[\[O][0-9;]*[A-Za-z~])?|[\x00-\x7f]")


def parse_keys(data: bytes) -> list[str]:
    """The keys pressed, in order: "up", "down", "enter", "esc", or the character. Other function keys are passed over,
    and so is what is no ASCII.
    """
    pressed = []
    for sequence in _KEY.findall(data):
        name = _SEQUENCES.get(sequence) or (sequence.decode() if len(sequence) == 1 else None)
        if name is not None:
            pressed.append(name)
    return pressed
