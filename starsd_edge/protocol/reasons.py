"""Why a target's last round used no draft of the hub, as a REPORT says it.

Reasons are only ever added; a monitor shows one that it does not know as it is.
"""

from __future__ import annotations

LATE = "late"
SILENT = "silent"
CLOSED = "closed"
EMPTY = "empty"
IDLE = "idle"

MEANINGS = {
    LATE: "the hub's drafts come too late to be waited for",
    SILENT: "the hub does not answer",
    CLOSED: "the hub has no session for it: away, warming, or it refused",
    EMPTY: "the hub had no guess",
    IDLE: "no answer is in progress",
}
