"""The table of targets: as many columns as the width takes, as many rows as the height takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from starsd_edge.protocol import codes as shape_reasons
from starsd_edge.protocol.codec import printable
from starsd_edge.protocol.codes import MEANINGS
from starsd_edge.telemetry.feed import Event
from starsd_edge.telemetry.hub_facts import LatencyFacts, ShapeFacts
from starsd_edge.telemetry.monitor.board import FAILING, KEYS, ON, WARMING, TargetRow
from starsd_edge.telemetry.monitor.formats import (
    Marks,
    acceptance_lines,
    accepted_of,
    clock,
    count,
    event_line,
    heading,
    milliseconds,
    number,
    pair,
    percent,
    size,
    sparkline,
)

_LEAST_NAME = 12
_MOST_NAME = 32
_FAR = 2.0
"""Multiple of the least round-trip time above which the present one is coloured."""


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


def target_table(
    rows: Sequence[TargetRow], chosen: str | None, width: int, marks: Marks, room: int, total: int | None = None
) -> Table:
    """At most `room` lines, the heading included; the chosen target is among them.

    Args:
        total: targets that there are, those that are not to be shown included; None: as many as rows.
    """
    shown = _window(rows, chosen, room - 1)
    start = rows.index(shown[0]) if shown else 0
    columns = _columns(width, marks)
    name_width = min(_MOST_NAME, width - sum(column.width + 1 for column in columns))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column(_span(start, len(shown), len(rows), total), width=name_width, no_wrap=True, overflow="ellipsis")
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
    for row in shown:
        is_chosen = row.key == chosen
        name = Text.assemble(marks.pointer if is_chosen else " ", row.name, style="reverse" if is_chosen else "")
        cells = [Text(column.cell(row), column.style(row)) for column in columns]
        table.add_row(name, *cells, style="bold" if is_chosen else "")
    return table


def _span(start: int, shown: int, rows: int, total: int | None) -> str:
    """Which of them stand there."""
    if shown < rows:
        return f"{start + 1}-{start + shown} of {rows}"
    return f"targets: {rows}" if total is None or total == rows else f"{rows} of {total}"


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


_STATES = {
    ON: "the hub drafts for it",
    WARMING: "the hub's drafter is not ready yet",
    FAILING: "the hub's drafter keeps failing",
    **MEANINGS,
}
_COLUMNS = {
    "RTT, least": "round trip, ms: now, least of late, course; yellow: degraded",
    "wait ms": "in the hub's queue: median / 99th percentile",
    "back, verify": "from a draft to the next request; the pass in it, ms",
    "accepted": "nodes of a draft that came true / nodes of a draft",
    "tok/s, plain": "tokens a second in rounds with a draft, and without",
    "of hub, own": "share of rounds with a draft of the hub, of the target's own",
    "drafting": "on, or why rounds go without the hub:",
}
_LABEL = 18


def detail_lines(row: TargetRow, events: Sequence[Event], uptime_s: float, width: int, marks: Marks) -> list[Text]:
    """Everything that is known of a target; `events` are those of its name."""
    spoken = row.spoken
    at_port = f" at port {row.port}" if row.port else ""
    figures = [
        ("address", f"{row.address}{at_port}, connected for {clock(row.connected_s)}"),
        ("drafter", f"{row.drafter}, {count(row.sessions)} sessions"),
        ("drafting", f"{row.state}: {_STATES.get(row.state, 'a reason of a newer target')}"),
        ("draft size", _shape(row.shape)),
        ("RTT", f"{milliseconds(row.rtt_ms)} ms, least {milliseconds(row.min_rtt_ms)} ms"),
        ("", sparkline(row.rtt_history, max(8, width - _LABEL - 2), marks)),
        ("round", _round(row.latency)),
        ("wait in the queue", f"{milliseconds(row.queue_ms_p50)} ms median, {milliseconds(row.queue_ms_p99)} ms p99"),
        ("drafts", f"{number(row.drafts_per_s)}/s, accepted/nodes {accepted_of(row.acceptance)}"),
        ("verify", f"{milliseconds(spoken.verify_ms)} ms a round, {milliseconds(spoken.wait_ms)} ms waiting"),
        ("tokens/s", f"{number(spoken.tokens_per_s)} with drafts, {number(spoken.plain_tokens_per_s)} without"),
        ("rounds", f"{percent(spoken.hub_share)} with the hub, {percent(spoken.local_share)} with own drafts"),
        ("bytes", f"{size(row.bytes_up_per_s)}/s up, {size(row.bytes_down_per_s)}/s down"),
    ]
    lines = [heading(row.name, width)]
    lines += [Text.assemble((f"{label:<{_LABEL}}", "dim"), text) for label, text in figures]
    lines += [heading("acceptance by level", width), *acceptance_lines(row.acceptance, min(width, 70), marks)]
    return [*lines, heading("events", width), *(event_line(event) for event in reversed(events))]


def _round(latency: LatencyFacts) -> str:
    """From a draft to the next request as the hub sees it, and the network's part of it."""
    parts = [_spread(latency.return_ms, latency.return_deviation_ms)]
    if latency.link_ms is not None:
        parts.append(f"network {_spread(latency.link_ms, latency.link_deviation_ms)}")
    if latency.degraded:
        parts.append(f"degraded from {milliseconds(latency.usual_ms)} ms")
    return ", ".join(parts)


def _shape(shape: ShapeFacts) -> str:
    """How large its drafts are, and why."""
    if not shape.why:
        return "-"
    drafted = f"{shape.nodes} nodes, {shape.depth} levels: " if shape.nodes else ""
    why = shape_reasons.SHAPE_MEANINGS.get(shape.why, printable(shape.why))
    gain = f"; {shape.gain:.2f} x plain expected" if shape.gain and shape.nodes else ""
    return f"{drafted}{why}{gain}"


def _spread(value_ms: float | None, deviation_ms: float) -> str:
    return f"{milliseconds(value_ms)} ms" + (f" +-{milliseconds(deviation_ms)}" if value_ms is not None else "")


def help_lines(room: int) -> list[Text]:
    """Keys, columns, reasons; without the keys, which the last line names too, where there is no room for all."""
    keys = [Text.assemble((f"{keys:<{_LABEL}}", "bold"), meaning) for keys, meaning in KEYS.items()]
    lines = [Text.assemble((f"{title:<{_LABEL}}", "bold"), meaning) for title, meaning in _COLUMNS.items()]
    lines += [
        Text.assemble("  ", (f"{state:<{_LABEL - 2}}", "bold"), why) for state, why in _STATES.items() if state != ON
    ]
    return [*keys, *lines] if len(keys) + len(lines) <= room else lines
