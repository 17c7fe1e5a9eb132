"""A board, what was chosen and a size give a frame. Pure; whoever shows it knows the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from starsd_edge.telemetry.monitor.board import Board
from starsd_edge.telemetry.monitor.detail import detail_lines, help_lines
from starsd_edge.telemetry.monitor.formats import Marks
from starsd_edge.telemetry.monitor.header import figure_lines, header_lines
from starsd_edge.telemetry.monitor.parts import acceptance_lines, event_line, heading
from starsd_edge.telemetry.monitor.target_table import target_table
from starsd_edge.telemetry.monitor.view import ORDERS, Choice, ordered, selected

_LEAST_BOTTOM = 6
_MOST_BOTTOM = 14
_KEYS_LINE = "q quit  p pause  s sort  up/down choose  enter detail  ? help"


@dataclass(frozen=True)
class Sight:
    """Where a frame is shown.

    Attributes:
        title: which hub.
        link: how the feed is: "live", or what is wrong.
        is_live: whether that is good.
    """

    width: int
    height: int
    marks: Marks
    title: str
    link: str
    is_live: bool


def frame(board: Board, choice: Choice, sight: Sight) -> RenderableType:
    """Exactly `height` lines of at most `width` columns."""
    header = header_lines(board, sight.title, _link(choice, sight), sight.width, sight.marks)
    room = sight.height - len(header) - 1
    return Group(*header, *_body(board, choice, sight, room), _footer(choice, sight))


def pane(board: Board, sight: Sight) -> RenderableType:
    """A frame beside other things, without the keys that it does not get: exactly `height` lines."""
    header = header_lines(board, sight.title, _link(Choice(), sight), sight.width, sight.marks)
    return Group(*header, *_body(board, Choice(), sight, sight.height - len(header)))


def strip(board: Board, sight: Sight) -> RenderableType:
    """The hub's load and a line for each target, in exactly `height` lines."""
    rows = ordered(board, Choice())
    load = figure_lines(board.hub, sight.width, sight.marks)[0] if sight.is_live else _link(Choice(), sight)
    table = target_table(rows, None, sight.width, sight.marks, sight.height - 1)
    blank = [Text("")] * (sight.height - 2 - max(1, len(rows)))
    return Group(load, table, *blank)


def report(board: Board, sight: Sight) -> RenderableType:
    """All of it once, as long as it is."""
    header = header_lines(board, sight.title, Text(sight.link), sight.width, sight.marks)
    rows = ordered(board, Choice())
    table = target_table(rows, None, sight.width, sight.marks, room=len(rows) + 1)
    return Group(
        *header,
        table,
        heading("acceptance by level", sight.width),
        *acceptance_lines(board.hub.acceptance, sight.width, sight.marks),
    )


def _body(board: Board, choice: Choice, sight: Sight, room: int) -> list[RenderableType]:
    if choice.help:
        return list(_cut(help_lines(room), room))
    row = selected(board, choice)
    if choice.detail and row is not None:
        events = [event for event in board.events if event.target == row.name]
        return list(_cut(detail_lines(row, events, board.hub.uptime_s, sight.width, sight.marks), room))
    bottom = max(_LEAST_BOTTOM, min(_MOST_BOTTOM, room // 3))
    rows = ordered(board, choice)
    table_room = max(2, room - bottom)
    table = target_table(rows, choice.selected, sight.width, sight.marks, table_room)
    blank = [Text("")] * max(0, table_room - 1 - max(1, len(rows)))
    return [table, *blank, _bottom(board, choice, sight, min(bottom, room - table_room))]


def _bottom(board: Board, choice: Choice, sight: Sight, room: int) -> RenderableType:
    """Acceptance of the chosen target, or of all, beside the last events."""
    row = selected(board, choice)
    left_width = max(28, min(60, sight.width * 2 // 5))
    right_width = sight.width - left_width - 2
    acceptance = board.hub.acceptance if row is None else row.acceptance
    whose = "all targets" if row is None else row.name
    left = [heading(f"acceptance by level: {whose}", left_width)]
    left += acceptance_lines(acceptance, left_width, sight.marks)
    right = [heading("events", right_width)]
    right += [event_line(event) for event in board.events[-(room - 1) :]] if room > 1 else []
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=left_width, no_wrap=True, overflow="ellipsis")
    grid.add_column(width=right_width, no_wrap=True, overflow="ellipsis")
    for mine, yours in zip(_cut(left, room), _cut(right, room), strict=True):
        grid.add_row(mine, yours)
    return grid


def _cut(lines: Sequence[Text], room: int) -> list[Text]:
    """So many lines."""
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return [*lines[:room], *[Text("")] * max(0, room - len(lines))]


def _link(choice: Choice, sight: Sight) -> Text:
    if choice.paused:
        return Text("paused", "bold yellow")
    return Text(sight.link, "green" if sight.is_live else "bold red")


def _footer(choice: Choice, sight: Sight) -> Text:
    by = f"sorted by {ORDERS[choice.sort][0]}"
    space = max(2, sight.width - len(_KEYS_LINE) - len(by))
    return Text(f"{_KEYS_LINE}{' ' * space}{by}", "dim", no_wrap=True, overflow="ellipsis")
