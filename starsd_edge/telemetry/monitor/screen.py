"""The monitor in front of a person: takes in the feed and keys, and draws. It knows no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import RenderableType

from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.board import StarBoard
from starsd_edge.telemetry.monitor.feed_client import FeedLink
from starsd_edge.telemetry.monitor.formats import Marks
from starsd_edge.telemetry.monitor.frame import Sight, frame
from starsd_edge.telemetry.monitor.model import MonitorModel
from starsd_edge.telemetry.monitor.view import ViewState, press

CONNECTING = FeedLink("connecting", is_live=False)


@dataclass
class Screen:
    """Attributes:
    title: which hub is watched.
    size: columns and lines of the terminal, asked before every frame.
    show: puts a frame on it.
    """

    title: str
    marks: Marks
    size: Callable[[], tuple[int, int]]
    show: Callable[[RenderableType], None]
    choice: ViewState = field(default_factory=ViewState)
    _model: MonitorModel = field(default_factory=MonitorModel)
    _newest: StarBoard = field(default_factory=StarBoard)
    _shown: StarBoard = field(default_factory=StarBoard)
    _link: FeedLink = CONNECTING

    def take(self, item: Snapshot | FeedLink) -> None:
        """Something came of the feed. While the picture is held, snapshots are only counted in."""
        if isinstance(item, FeedLink):
            self._link = item
        else:
            self._newest = self._model.take(item)
        if not self.choice.paused:
            self._shown = self._newest
        self.draw()

    def press(self, key: str) -> None:
        """A key was pressed."""
        self.choice = press(self.choice, key, self._shown)
        if not self.choice.paused:
            self._shown = self._newest
        self.draw()

    def draw(self) -> None:
        """Show how things are, at the size that the terminal has now."""
        width, height = self.size()
        sight = Sight(width, height, self.marks, self.title, self._link.text, self._link.is_live)
        self.show(frame(self._shown, self.choice, sight))


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
