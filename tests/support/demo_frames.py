"""The demo's picture as text, with a recorded feed beside the answers, and the files that it is compared with.

`python -m tests.support.demo_frames` writes those files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from starsd_edge.cli.demo.star import DemoTargetResult
from starsd_edge.cli.demo.view import LiveView
from starsd_edge.telemetry.monitor.feed_client import LIVE
from tests.support.monitor_frames import board_of, recorded, text_of

CASES = {"80x24": (80, 24, 3), "120x40": (120, 40, 3), "200x60": (200, 60, 3), "120x24-six": (120, 24, 6)}
"""Name, columns, lines, targets."""
_ANSWER = "A hub guesses for many devices at once, and every device keeps what its own model would have said. "


def view_of(width: int, height: int, targets: int) -> LiveView:
    """A view at this size that nothing was told yet."""
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    return LiveView(console, [f"target {number + 1}" for number in range(targets)])


def case_text(name: str) -> str:
    """The picture of a case: answers of different lengths, one of them whole, and the recorded hub."""
    width, height, targets = CASES[name]
    view = view_of(width, height, targets)
    for number in range(targets):
        view.piece(number, _ANSWER * (number + 1))
    view.end(0, DemoTargetResult(figures={"tokens_per_s": 12.5}))
    board = board_of(recorded())
    view.hub(LIVE)
    view.hub(replace(board, targets=board.targets[:targets]))
    return text_of(view.picture(), width, height)


def golden(name: str) -> Path:
    """The file of a case."""
    return Path(__file__).parents[1] / "cli" / "golden" / f"demo-{name}.txt"


if __name__ == "__main__":
    for case in CASES:
        golden(case).write_text(case_text(case))
