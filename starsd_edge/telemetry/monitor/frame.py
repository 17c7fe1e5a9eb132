"""A board, what was chosen and a size give a frame; `Screen` takes the feed and keys and makes one after each. Pure:
whoever shows the frames knows the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.board import FAILING, ORDERS, HubRow, StarBoard, ViewState, ordered, press, selected
from starsd_edge.telemetry.monitor.feed_client import FeedLink
from starsd_edge.telemetry.monitor.formats import (
    Marks,
    acceptance_lines,
    accepted_of,
    bar,
    clock,
    count,
    event_line,
    heading,
    milliseconds,
    number,
    pair,
    percent,
    size,
)
from starsd_edge.telemetry.monitor.model import MonitorModel
from starsd_edge.telemetry.monitor.target_table import detail_lines, help_lines, target_table

_GAP = "   "
_BUSY = 0.9
"""Share of busy time above which targets begin to wait for each other."""


def header_lines(board: StarBoard, title: str, link: Text, width: int, marks: Marks) -> list[Text]:
    """Four lines; what does not fit is left out from the right."""
    return [
        _opening(title, link, width),
        *figure_lines(board.hub, width, marks),
    ]


def figure_lines(hub: HubRow, width: int, marks: Marks) -> list[Text]:
    """The last three of them: load, traffic, what the hub is."""
    return [
        _fitting(_load(hub, 10 if width < 100 else 20, marks), width),
        _fitting(_traffic(hub), width),
        _fitting(_identity(hub), width),
    ]


def _opening(title: str, link: Text, width: int) -> Text:
    name = Text.assemble(("starsd-edge monitor", "bold"), "  ", title)
    name.truncate(max(0, width - len(link) - 2), overflow="ellipsis")
    line = Text.assemble(name, " " * max(2, width - name.cell_len - link.cell_len), link)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _load(hub: HubRow, cells: int, marks: Marks) -> list[Text]:
    style = "red" if hub.busy > _BUSY else "cyan"
    return [
        Text.assemble("busy ", (bar(hub.busy, cells, marks), style), f" {percent(hub.busy)}"),
        Text(f"idle {percent(hub.idle)}"),
        Text(f"queue {count(hub.queue_requests)}"),
        Text(f"batch {number(hub.batch)}"),
        Text(f"{number(hub.drafts_per_s)} drafts/s"),
        Text(f"{count(hub.queue_rows)} rows waiting"),
        Text(f"lag {percent(hub.lag)}"),
        *([Text(f"last batch {count(hub.last_batch)}")] if hub.last_batch else []),
    ]


def _traffic(hub: HubRow) -> list[Text]:
    return [
        Text(f"wait {pair(milliseconds(hub.queue_ms_p50), milliseconds(hub.queue_ms_p99))} ms"),
        Text(f"draft {pair(milliseconds(hub.draft_ms_p50), milliseconds(hub.draft_ms_p99))} ms"),
        Text(f"up {size(hub.bytes_up_per_s)}/s"),
        Text(f"down {size(hub.bytes_down_per_s)}/s"),
        *([Text(f"order {hub.policy[:8]}")] if hub.policy else []),
        Text(f"no token {count(hub.auth_failures)}"),
        Text(f"turned away {count(hub.turned_away)}"),
    ]


def _identity(hub: HubRow) -> list[Text]:
    lead = hub.drafters[0] if hub.drafters else None
    board = [
        Text(f"{count(hub.sessions)} sessions, {count(hub.sessions_away)} away"),
        Text(f"accepted {accepted_of(hub.acceptance)}"),
    ]
    if lead is not None:
        board.insert(0, Text(f"{lead.kind} {lead.state}", "red" if lead.state == FAILING else ""))
    if lead is not None and lead.failures:
        board.append(Text(f"{count(lead.failures)} failures, last {lead.last_error}", "red"))
    return [*board, Text(f"up {clock(hub.uptime_s)}"), Text(f"hub {hub.hub_id[:8]}"), Text(f"version {hub.version}")]


def _fitting(parts: list[Text], width: int) -> Text:
    line = parts[0].copy()
    for part in parts[1:]:
        if line.cell_len + len(_GAP) + part.cell_len > width:
            break
        line.append(_GAP).append_text(part)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


_HEADER = 4
_LEAST_BOTTOM = 6
_MOST_BOTTOM = 14
_KEYS_LINE = "q quit  p pause  s sort  / filter  enter detail  ? help"
_SHORT_KEYS_LINE = "q quit  s sort  / filter  ? help"


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


def frame(board: StarBoard, choice: ViewState, sight: Sight) -> RenderableType:
    """Exactly `height` lines of at most `width` columns."""
    header = header_lines(board, sight.title, _link(choice, sight), sight.width, sight.marks)
    room = sight.height - len(header) - 1
    return Group(*header, *_body(board, choice, sight, room), _footer(choice, sight))


def pane(board: StarBoard, sight: Sight) -> RenderableType:
    """A frame beside other things, without the keys that it does not get: exactly `height` lines."""
    header = header_lines(board, sight.title, _link(ViewState(), sight), sight.width, sight.marks)
    return Group(*header, *_body(board, ViewState(), sight, sight.height - len(header)))


def strip(board: StarBoard, sight: Sight) -> RenderableType:
    """The hub's load and a line for each target, in exactly `height` lines."""
    rows = ordered(board, ViewState())
    load = figure_lines(board.hub, sight.width, sight.marks)[0] if sight.is_live else _link(ViewState(), sight)
    table = target_table(rows, None, sight.width, sight.marks, sight.height - 1)
    blank = [Text("")] * (sight.height - 2 - max(1, len(rows)))
    return Group(load, table, *blank)


def report(board: StarBoard, sight: Sight, choice: ViewState = ViewState()) -> RenderableType:  # noqa: B008 (frozen)
    """All of it once, as long as it is."""
    header = header_lines(board, sight.title, Text(sight.link), sight.width, sight.marks)
    rows = ordered(board, choice)
    table = target_table(rows, None, sight.width, sight.marks, len(rows) + 1, len(board.targets))
    return Group(
        *header,
        table,
        heading("acceptance by level", sight.width),
        *acceptance_lines(board.hub.acceptance, sight.width, sight.marks),
    )


def _body(board: StarBoard, choice: ViewState, sight: Sight, room: int) -> list[RenderableType]:
    if choice.help:
        return list(_cut(help_lines(room), room))
    row = selected(board, choice)
    if choice.detail and row is not None:
        events = [event for event in board.events if event.target == row.name]
        return list(_cut(detail_lines(row, events, board.hub.uptime_s, sight.width, sight.marks), room))
    bottom = _bottom_room(room)
    rows = ordered(board, choice)
    table_room = max(2, room - bottom)
    table = target_table(rows, choice.selected, sight.width, sight.marks, table_room, len(board.targets))
    blank = [Text("")] * max(0, table_room - 1 - max(1, len(rows)))
    return [table, *blank, _bottom(board, choice, sight, min(bottom, room - table_room))]


def _bottom_room(room: int) -> int:
    return max(_LEAST_BOTTOM, min(_MOST_BOTTOM, room // 3))


def rows_of(height: int) -> int:
    """Targets that a frame of this height has room for."""
    room = height - _HEADER - 1
    return max(1, room - _bottom_room(room) - 1)


def _bottom(board: StarBoard, choice: ViewState, sight: Sight, room: int) -> RenderableType:
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


def _link(choice: ViewState, sight: Sight) -> Text:
    if choice.paused:
        return Text("paused", "bold yellow")
    return Text(sight.link, "green" if sight.is_live else "bold red")


def _footer(choice: ViewState, sight: Sight) -> Text:
    if choice.typing:
        keys = "   enter keeps it, esc shows all"
        return Text.assemble(("filter: ", "bold"), choice.wanted, ("_", "blink"), (keys, "dim"))
    by = f"sorted by {ORDERS[choice.sort][0]}"
    if choice.wanted:
        by = f"only {choice.wanted!r}, {by}"
    keys = _KEYS_LINE if len(_KEYS_LINE) + len(by) + 2 <= sight.width else _SHORT_KEYS_LINE
    space = max(2, sight.width - len(keys) - len(by))
    return Text(f"{keys}{' ' * space}{by}", "dim", no_wrap=True, overflow="ellipsis")


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
        self.choice = press(self.choice, key, self._shown, rows_of(self.size()[1]))
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
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    **dict.fromkeys((b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"\x1b[7~"), "home"),
    **dict.fromkeys((b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"\x1b[8~"), "end"),
}
_KEY = re.compile(rb"\x1b(?:[\[O][0-9;]*[A-Za-z~])?|[\x00-\x7f]")


def parse_keys(data: bytes) -> list[str]:
    """The keys pressed, in order: "up", "down", "page-up", "page-down", "home", "end", "enter", "esc", "backspace", or
    the character. Other function keys are passed over, and so is what is no ASCII.
    """
    pressed = []
    for sequence in _KEY.findall(data):
        name = _SEQUENCES.get(sequence) or (sequence.decode() if len(sequence) == 1 else None)
        if name is not None:
            pressed.append(name)
    return pressed
