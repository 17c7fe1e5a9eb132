"""Pieces that several views share."""

from __future__ import annotations

from rich.text import Text

from starsd_edge.telemetry.feed import DEGRADED, FAILED, JOINED, RECOVERED, REFUSED, RESUMED, TURNED_AWAY, WARM, Event
from starsd_edge.telemetry.monitor.board import Acceptance
from starsd_edge.telemetry.monitor.formats import Marks, bar, clock, number, pair

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
