"""What the person in front of the monitor has chosen, and what each key does to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from starsd_edge.telemetry.monitor.board import StarBoard, TargetRow

KEYS = {
    "q": "quit",
    "p, space": "hold the picture, and let it go on",
    "s": "sort by the next column",
    "up, down, k, j": "choose a target",
    "enter, d, esc": "one target in detail, and back",
}


@dataclass(frozen=True)
class ViewState:
    """Attributes:
    paused: the picture stands still; snapshots are still taken in.
    sort: index into `ORDERS`.
    selected: key of a target, None before one was chosen.
    detail: the selected target fills the screen.
    help: so does the help.
    quit: leave.
    """

    paused: bool = False
    sort: int = 0
    selected: str | None = None
    detail: bool = False
    help: bool = False
    quit: bool = False


ORDERS: tuple[tuple[str, Callable[[TargetRow], tuple[float | str, ...]]], ...] = (
    ("name", lambda row: (row.name, row.key)),
    ("RTT", lambda row: (-_or(row.rtt_ms, -1.0), row.name)),
    ("queue wait", lambda row: (-row.queue_ms_p99, row.name)),
    ("acceptance", lambda row: (_or(row.acceptance.accepted_per_draft, math.inf), row.name)),
    ("tokens/s", lambda row: (-_or(row.spoken.tokens_per_s, -1.0), row.name)),
    ("drafting", lambda row: (row.state == "on", row.state, row.name)),
)
"""By what targets can be sorted, those that want attention first."""


def ordered(board: StarBoard, choice: ViewState) -> list[TargetRow]:
    """The targets as they are shown."""
    return sorted(board.targets, key=ORDERS[choice.sort][1])


def selected(board: StarBoard, choice: ViewState) -> TargetRow | None:
    """The chosen target, if it is there."""
    return next((row for row in board.targets if row.key == choice.selected), None)


def press(choice: ViewState, key: str, board: StarBoard) -> ViewState:
    """What is chosen after this key; see `parse_keys` for their names. Unknown keys do nothing."""
    if key == "q":
        return replace(choice, quit=True)
    if key in {"?", "h"}:
        return replace(choice, help=not choice.help)
    if key in {"p", " "}:
        return replace(choice, paused=not choice.paused)
    if key == "s":
        return replace(choice, sort=(choice.sort + 1) % len(ORDERS))
    if key == "esc":
        return replace(choice, help=False, detail=False)
    if key in {"enter", "d"}:
        return replace(_some_selected(choice, board), detail=not choice.detail, help=False)
    if key in {"up", "k"}:
        return _moved(choice, board, -1)
    if key in {"down", "j"}:
        return _moved(choice, board, 1)
    return choice


def _moved(choice: ViewState, board: StarBoard, by: int) -> ViewState:
    keys = [row.key for row in ordered(board, choice)]
    if not keys:
        return choice
    if choice.selected not in keys:
        return replace(choice, selected=keys[0 if by > 0 else -1])
    index = keys.index(choice.selected) + by
    return replace(choice, selected=keys[max(0, min(index, len(keys) - 1))])


def _some_selected(choice: ViewState, board: StarBoard) -> ViewState:
    return choice if selected(board, choice) else _moved(replace(choice, selected=None), board, 1)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
