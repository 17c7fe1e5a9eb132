"""The board for logs and scripts: a line, or a JSON object."""

from __future__ import annotations

import msgspec

from starsd_edge.telemetry.monitor.board import ON, Board
from starsd_edge.telemetry.monitor.formats import ABSENT, clock, count, milliseconds, number, pair, percent, size
from starsd_edge.telemetry.monitor.parts import accepted_of


def plain_line(board: Board) -> str:
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


def board_json(board: Board) -> str:
    """All of it on one line."""
    return msgspec.json.encode(board).decode()
