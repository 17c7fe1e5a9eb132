"""The picture of the monitor in the README, from the recorded feed of the tests.

    python scripts/monitor_picture.py [FEED.jsonl PICTURE.svg]

Another feed can be recorded with `starsd-edge monitor HUB --record FEED.jsonl`.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from starsd_edge.telemetry.feed import decode_snapshot
from starsd_edge.telemetry.monitor.board import StarBoard, ViewState, press
from starsd_edge.telemetry.monitor.formats import UNICODE
from starsd_edge.telemetry.monitor.frame import Sight, frame
from starsd_edge.telemetry.monitor.model import MonitorModel

_ROOT = Path(__file__).parents[1]
_FEED, _PICTURE = _ROOT / "tests" / "monitor" / "feed.jsonl", _ROOT / "docs" / "monitor.svg"
_WIDTH, _HEIGHT = 100, 22
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main(feed: Path = _FEED, picture: Path = _PICTURE) -> None:
    """Draw the last moment of a feed in which somebody was connected."""
    model, board = MonitorModel(), StarBoard()
    for line in feed.read_bytes().splitlines():
        newest = model.take(decode_snapshot(line))
        board = newest if newest.targets else board
    choice = press(ViewState(), "up", board)
    sight = Sight(_WIDTH, _HEIGHT, UNICODE, "ws://127.0.0.1:8317", "live", is_live=True)
    console = Console(width=_WIDTH, height=_HEIGHT, file=io.StringIO(), record=True, highlight=False)
    console.print(frame(board, choice, sight))
    drawn = console.export_svg(title="starsd-edge monitor", theme=MONOKAI, unique_id="monitor")
    picture.write_text(_WEB_FONT.sub("", drawn))  # a picture fetches nothing


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
