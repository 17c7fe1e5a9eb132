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
    LATE: "the hub's drafts come later than waiting for them is worth",
    SILENT: "the hub does not answer",
    CLOSED: "the hub holds no session for this answer: it is away, not warm yet, or has refused",
    EMPTY: "the hub had no guess",
    IDLE: "no answer is in progress",
}
