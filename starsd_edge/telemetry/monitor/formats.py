"""Numbers for narrow columns: every text here has a bounded length, whatever a hub sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text

from starsd_edge.telemetry.feed import DEGRADED, FAILED, JOINED, RECOVERED, REFUSED, RESUMED, TURNED_AWAY, WARM, Event
from starsd_edge.telemetry.monitor.board import ON, Acceptance, StarBoard

ABSENT = "-"
_NOISE = 0.2
"""Milliseconds: the least range of a sparkline, so that small variations look small."""


@dataclass(frozen=True)
class Marks:
    """What graphs are drawn with.

    Attributes:
        levels: of a sparkline, low to high.
        full, empty: cells of a bar.
        pointer: in front of the selected target.
        more: at the end of what did not fit.
    """

    levels: str
    full: str
    empty: str
    pointer: str
    more: str


UNICODE = Marks("▁▂▃▄▅▆▇█", "█", "░", "▸", "…")
ASCII = Marks("_.-=+*#@", "#", ".", ">", "~")


def marks_for(encoding: str) -> Marks:
    """Those that this encoding has."""
    try:
        "".join(vars(UNICODE).values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def milliseconds(value: float | None) -> str:
    """At most five characters: 0.12, 12.3, 123, 1.2s, 123s."""
    if value is None:
        return ABSENT
    if value < 999.5:
        return _three_digits(value)
    seconds = value / 1e3
    return f"{seconds:.1f}s" if seconds < 99.95 else f"{min(seconds, 9999):.0f}s"


def number(value: float | None) -> str:
    """At most five characters: 1.23, 12.3, 123, 1234, 12k, 12M."""
    if value is None:
        return ABSENT
    if value < 9999.5:
        return _three_digits(value)
    if value < 999_500:
        return f"{value / 1e3:.0f}k"
    return f"{min(value / 1e6, 9999):.0f}M"


def _three_digits(value: float) -> str:
    """With as many decimals as three digits have room for."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def count(value: int) -> str:
    """A whole number, short when it is large."""
    return str(value) if value < 10_000 else number(float(value))


def percent(value: float | None) -> str:
    """At most four characters."""
    return ABSENT if value is None else f"{100 * min(value, 9.99):.0f}%"


def size(value: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{min(value, 999_999):.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1e3
    raise AssertionError


def clock(seconds: float) -> str:
    """Uptime as H:MM:SS."""
    whole = int(min(seconds, 3.6e8))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def pair(first: str, second: str) -> str:
    """Two of a kind: median and 99th percentile, accepted and drafted."""
    return ABSENT if (first, second) == (ABSENT, ABSENT) else f"{first}/{second}"


def sparkline(values: Sequence[float], width: int, marks: Marks) -> str:
    """The last `width` values, from the least of them up to twice that or the greatest: noise looks flat, and twice the
    usual reaches the top.
    """
    shown = values[-width:] if width > 0 else ()
    if not shown:
        return ""
    low = min(shown)
    high = max(*shown, 2 * low, low + _NOISE)
    top = len(marks.levels) - 1
    return "".join(marks.levels[round(top * (value - low) / (high - low))] for value in shown)


def bar(share: float, width: int, marks: Marks) -> str:
    """A share of a whole."""
    filled = max(0, min(width, round(share * width)))
    return marks.full * filled + marks.empty * (width - filled)


_EVENT_STYLES = {
    JOINED: "green",
    RESUMED: "green",
    WARM: "green",
    REFUSED: "yellow",
    TURNED_AWAY: "yellow",
    FAILED: "red",
    DEGRADED: "yellow",
    RECOVERED: "green",
}


def heading(text: str, width: int) -> Text:
    """A line that opens a part."""
    return Text(f"{text} ".ljust(width, "-")[:width], "dim")


def event_line(event: Event) -> Text:
    """When, what, who, why."""
    style = _EVENT_STYLES.get(event.kind, "")
    rest = " ".join(part for part in (event.target, event.text) if part)
    return Text.assemble((clock(event.at_s), "dim"), " ", (event.kind, style), " ", rest)


def accepted_of(acceptance: Acceptance) -> str:
    """Accepted and drafted nodes of one draft."""
    return pair(number(acceptance.accepted_per_draft), number(acceptance.nodes_per_draft))


def acceptance_lines(acceptance: Acceptance, width: int, marks: Marks) -> list[Text]:
    """A bar for each level."""
    if not acceptance.survival:
        return [Text("nothing was judged yet", "dim")]
    cells = max(4, width - 8)
    return [
        Text.assemble(f"{level:2} ", (bar(share, cells, marks), "cyan"), f" {share:.2f}")
        for level, share in enumerate(acceptance.survival, 1)
    ]


def plain_line(board: StarBoard) -> str:
    """The hub in one line of moderate length."""
    hub = board.hub
    on = sum(row.state == ON for row in board.targets)
    return "  ".join(
        [
            f"up {clock(hub.uptime_s)}",
            f"targets {len(board.targets)} ({on} on)",
            f"busy {percent(hub.busy)}",
            f"idle {percent(hub.idle)}",
            f"queue {count(hub.queue_requests)}",
            f"batch {number(hub.batch)}",
            f"order {hub.policy or ABSENT}",
            f"drafts/s {number(hub.drafts_per_s)}",
            f"wait {pair(milliseconds(hub.queue_ms_p50), milliseconds(hub.queue_ms_p99))} ms",
            f"accepted {accepted_of(hub.acceptance)}",
            f"{size(hub.bytes_up_per_s)}/s up",
            f"{size(hub.bytes_down_per_s)}/s down",
        ]
    )


def board_json(board: StarBoard) -> str:
    """All of it on one line."""
    return msgspec.json.encode(board).decode()
