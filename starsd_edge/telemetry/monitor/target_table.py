"""The table of targets: as many columns as the width takes, as many rows as the height takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from starsd_edge.telemetry.monitor.board import ON, TargetRow
from starsd_edge.telemetry.monitor.formats import Marks, milliseconds, number, pair, percent, size, sparkline
from starsd_edge.telemetry.monitor.parts import accepted_of

_LEAST_NAME = 12
_MOST_NAME = 32
_FAR = 2.0
"""A round trip of so many times the least is worth a colour."""


@dataclass(frozen=True)
class _Column:
    """Attributes:
    rank: columns of a lower rank are shown first when there is not room for all.
    """

    title: str
    width: int
    rank: int
    cell: Callable[[TargetRow], str]
    style: Callable[[TargetRow], str] = lambda row: ""
    left: bool = False


def target_table(rows: Sequence[TargetRow], chosen: str | None, width: int, marks: Marks, room: int) -> Table:
    """At most `room` lines, the heading included; the chosen target is among them."""
    columns = _columns(width, marks)
    name_width = min(_MOST_NAME, width - sum(column.width + 1 for column in columns))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column(f"targets: {len(rows)}", width=name_width, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(
            column.title,
            width=column.width,
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if column.left else "right",
        )
    if not rows:
        table.add_row(Text("none", "dim"))
    for row in _window(rows, chosen, room - 1):
        is_chosen = row.key == chosen
        name = Text.assemble(marks.pointer if is_chosen else " ", row.name, style="reverse" if is_chosen else "")
        cells = [Text(column.cell(row), column.style(row)) for column in columns]
        table.add_row(name, *cells, style="bold" if is_chosen else "")
    return table


def _window(rows: Sequence[TargetRow], chosen: str | None, room: int) -> Sequence[TargetRow]:
    """So many rows around the chosen one."""
    at = next((index for index, row in enumerate(rows) if row.key == chosen), 0)
    start = max(0, min(at - room // 2, len(rows) - room))
    return rows[start : start + max(0, room)]


def _columns(width: int, marks: Marks) -> list[_Column]:
    """Those that fit beside a name, in their usual order."""
    every = _every_column(width, marks)
    left = width - _LEAST_NAME
    shown: set[str] = set()
    for column in sorted(every, key=lambda column: column.rank):
        if column.width + 1 <= left:
            left -= column.width + 1
            shown.add(column.title)
    return [column for column in every if column.title in shown]


def _every_column(width: int, marks: Marks) -> list[_Column]:
    cells = 6 if width < 100 else 12 if width < 160 else 24
    return [
        _Column("RTT", 5, 1, lambda row: milliseconds(row.rtt_ms), _rtt_style),
        _Column("least", 5, 2, lambda row: milliseconds(row.min_rtt_ms)),
        _Column("", cells, 3, lambda row: sparkline(row.rtt_history, cells, marks), lambda row: "cyan", left=True),
        _Column("wait ms", 10, 4, lambda row: pair(milliseconds(row.queue_ms_p50), milliseconds(row.queue_ms_p99))),
        _Column("back", 5, 6, lambda row: milliseconds(row.latency.return_ms), _back_style),
        _Column("verify", 6, 5, lambda row: milliseconds(row.spoken.verify_ms)),
        _Column("accepted", 9, 3, lambda row: accepted_of(row.acceptance)),
        _Column("tok/s", 5, 1, lambda row: number(row.spoken.tokens_per_s)),
        _Column("plain", 5, 2, lambda row: number(row.spoken.plain_tokens_per_s)),
        _Column("drafting", 8, 1, lambda row: row.state, _state_style, left=True),
        _Column("of hub", 6, 6, lambda row: percent(row.spoken.hub_share)),
        _Column("own", 4, 7, lambda row: percent(row.spoken.local_share)),
        _Column("drafts/s", 8, 6, lambda row: number(row.drafts_per_s)),
        _Column("up/down a second", 16, 8, lambda row: pair(size(row.bytes_up_per_s), size(row.bytes_down_per_s))),
        _Column("address", 21, 9, lambda row: row.address, left=True),
    ]


def _back_style(row: TargetRow) -> str:
    return "yellow" if row.latency.degraded else ""


def _rtt_style(row: TargetRow) -> str:
    if row.latency.degraded:
        return "yellow"
    if row.rtt_ms is None or row.min_rtt_ms is None:
        return ""
    return "yellow" if row.rtt_ms > _FAR * row.min_rtt_ms + 1.0 else ""


def _state_style(row: TargetRow) -> str:
    return "green" if row.state == ON else "dim" if row.state == "idle" else "yellow"
