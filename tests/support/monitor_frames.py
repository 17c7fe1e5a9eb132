"""Frames of the recorded feed as text, and the files that they are compared with.

`python -m tests.support.monitor_frames` writes those files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, RenderableType

from starsd_edge.telemetry.feed import Snapshot, decode_snapshot
from starsd_edge.telemetry.monitor.board import StarBoard, ViewState, press
from starsd_edge.telemetry.monitor.formats import ASCII, UNICODE, Marks
from starsd_edge.telemetry.monitor.frame import Sight, frame
from starsd_edge.telemetry.monitor.model import MonitorModel

FOLDER = Path(__file__).parents[1] / "monitor"
FEED = FOLDER / "feed.jsonl"
CASES = {
    "80x24": (80, 24, "", UNICODE),
    "120x40": (120, 40, "sjj", UNICODE),
    "200x60": (200, 60, "ssss", UNICODE),
    "80x24-detail": (80, 24, "jjd", UNICODE),
    "80x24-help": (80, 24, "?", UNICODE),
    "80x24-ascii": (80, 24, "k", ASCII),
}
"""Name, columns, lines, keys pressed before, what graphs are drawn with."""


def recorded() -> list[Snapshot]:
    """The recorded feed."""
    return [decode_snapshot(line) for line in FEED.read_bytes().splitlines()]


def board_of(snapshots: list[Snapshot]) -> StarBoard:
    """What is shown after these."""
    model = MonitorModel()
    board = StarBoard()
    for snapshot in snapshots:
        board = model.take(snapshot)
    return board


def pressed(keys: str, board: StarBoard) -> ViewState:
    """What is chosen after these keys."""
    choice = ViewState()
    for key in keys:
        choice = press(choice, key, board)
    return choice


def text_of(renderable: RenderableType, width: int, height: int) -> str:
    """As a terminal of that size without colours would show it."""
    console = Console(
        width=width, height=height, file=io.StringIO(), color_system=None, legacy_windows=False, highlight=False
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def frame_text(board: StarBoard, choice: ViewState, width: int, height: int, marks: Marks = UNICODE) -> str:
    """A frame as text."""
    sight = Sight(width, height, marks, "ws://127.0.0.1:8317", "live", is_live=True)
    return text_of(frame(board, choice, sight), width, height)


def case_text(name: str) -> str:
    """The frame of a case."""
    width, height, keys, marks = CASES[name]
    board = board_of(recorded())
    return frame_text(board, pressed(keys, board), width, height, marks)


def golden(name: str) -> Path:
    """The file of a case."""
    return FOLDER / "golden" / f"{name}.txt"


if __name__ == "__main__":
    for case in CASES:
        golden(case).write_text(case_text(case))
