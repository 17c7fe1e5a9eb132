"""Why a target's last round used no draft of the hub, as a REPORT says it.

Reasons are only ever added; a monitor shows one that it does not know as it is.
"""

from __future__ import annotations

LATE = "late"
SILENT = "silent"
CLOSED = "closed"
EMPTY = "empty"
POOR = "poor"
TIMED = "timed"
LOCAL = "local"
IDLE = "idle"
CLAMPED = "clamped"

WEAK = frozenset({EMPTY, POOR, LOCAL})
"""Reasons that come of weak drafts."""

MEANINGS = {
    LATE: "the hub's drafts come too late to be waited for",
    SILENT: "the hub does not answer",
    CLOSED: "the hub has no session for it: away, warming, or it refused",
    EMPTY: "the hub had no guess",
    POOR: "the guesses come true too rarely to pay for their checking",
    TIMED: "a plain step was timed, to see whether guesses pay",
    LOCAL: "the target's own guesses are worth more than the hub's",
    IDLE: "no answer is in progress",
    CLAMPED: "features of its model are not finite: drafts are weak",
}
