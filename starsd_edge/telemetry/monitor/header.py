"""The hub's own lines at the top."""

from __future__ import annotations

from rich.text import Text

from starsd_edge.telemetry.monitor.board import FAILING, Board, HubRow
from starsd_edge.telemetry.monitor.formats import Marks, bar, clock, count, milliseconds, number, pair, percent, size
from starsd_edge.telemetry.monitor.parts import accepted_of

_GAP = "   "
_BUSY = 0.9
"""Above this share of busy time, targets begin to wait for each other."""


def header_lines(board: Board, title: str, link: Text, width: int, marks: Marks) -> list[Text]:
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
