"""The picture of the monitor in the README, from a recorded feed.

    python scripts/monitor_picture.py FEED.jsonl docs/monitor.svg

Record a feed with `starsd-edge monitor HUB --record FEED.jsonl`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from starsd_edge.telemetry.feed import decode_snapshot
from starsd_edge.telemetry.monitor.board import Board
from starsd_edge.telemetry.monitor.formats import UNICODE
from starsd_edge.telemetry.monitor.frame import Sight, frame
from starsd_edge.telemetry.monitor.model import MonitorModel
from starsd_edge.telemetry.monitor.view import Choice, press

_WIDTH, _HEIGHT = 100, 22


def main(feed: Path, picture: Path) -> None:
    """Draw the last moment of a feed in which somebody was connected."""
    model, board = MonitorModel(), Board()
    for line in feed.read_bytes().splitlines():
        newest = model.take(decode_snapshot(line))
        board = newest if newest.targets else board
    choice = press(Choice(), "down", board)
    sight = Sight(_WIDTH, _HEIGHT, UNICODE, "ws://127.0.0.1:8317", "live", is_live=True)
    console = Console(width=_WIDTH, height=_HEIGHT, file=io.StringIO(), record=True, highlight=False)
    console.print(frame(board, choice, sight))
    picture.write_text(console.export_svg(title="starsd-edge monitor", theme=MONOKAI, unique_id="monitor"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
