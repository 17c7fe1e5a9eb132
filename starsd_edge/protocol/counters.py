"""What crossed the wire, counted: data first, formats elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class WireCounters:
    """Frames and bytes per message kind, as one end saw them. "up" is target to hub, whichever end counts.

    Attributes:
        dropped: frames that this end did not act on, per reason (a code, or why the message was of no use any more).
    """

    frames_up: Counter[str] = field(default_factory=Counter)
    frames_down: Counter[str] = field(default_factory=Counter)
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def count_up(self, kind: str, size: int) -> None:
        """A frame of `size` bytes went from the target to the hub."""
        self.frames_up[kind] += 1
        self.bytes_up[kind] += size

    def count_down(self, kind: str, size: int) -> None:
        """A frame of `size` bytes went from the hub to the target."""
        self.frames_down[kind] += 1
        self.bytes_down[kind] += size
