"""Error codes and WebSocket close codes of wire version 1, and the reasons that targets and hubs give for their drafts.

A code is for programs, the message beside it for people. Codes are only ever added; a peer treats one that it does
not know by its scope alone.
"""

from __future__ import annotations

VERSION = "version"
"""No common wire version."""
FINGERPRINT = "fingerprint"
"""The hub's models do not fit the target's."""
CODEC = "codec"
"""The drafter wants features in a form that the target cannot send."""
QUOTA = "quota"
"""Features of the target's key that wait for the drafter fill the memory that one key may take."""
BUSY = "busy"
"""The hub is closing, or has no free port for this target."""
MALFORMED = "malformed"
"""The frame is not a message or over a limit, or its parts contradict each other or what was agreed."""
OUT_OF_ORDER = "out_of_order"
"""The message has no place at this point of the conversation."""
UNKNOWN_SESSION = "unknown_session"
"""No session of this connection has that tag (expired, ended, or somebody else's: the answer is the same)."""
TOO_MANY_SESSIONS = "too_many_sessions"
"""The connection or the hub holds as many sessions as it may."""
ROW_CONFLICT = "row_conflict"
"""Rows sent again differ from those held."""
BASE_LEN = "base_len"
"""A request's base_len is not where the rows end that the hub has with those it brought."""
CONTEXT_FULL = "context_full"
"""More rows than the context has places."""
DRAFTER_FAILED = "drafter_failed"
"""The drafter could not go on with this session, or with none (scope `connection`)."""
TOO_MANY_PROBES = "too_many_probes"
"""PROBEs come faster than the hub answers them."""

OFFENCES = frozenset({MALFORMED, OUT_OF_ORDER, ROW_CONFLICT, BASE_LEN})
"""What no well-made peer sends: counted per connection, and too many of them end it."""

FINAL = frozenset({VERSION, FINGERPRINT, CODEC})
"""Refusals of a connection that the same peers would only repeat."""

MAX_OFFENCES = 8
"""Offences in one connection before it is ended: few, but more than one short fault causes."""

CLOSE_NORMAL = 1000
CLOSE_POLICY = 1008
CLOSE_TRY_LATER = 1013
CLOSE_VERSION = 4001
CLOSE_FINGERPRINT = 4002
CLOSE_QUOTA = 4003
CLOSE_STUCK = 4004
"""Nothing came, or nothing of what was to be sent was taken in, for too long."""

CLOSE_CODES = {
    VERSION: CLOSE_VERSION,
    FINGERPRINT: CLOSE_FINGERPRINT,
    CODEC: CLOSE_FINGERPRINT,
    QUOTA: CLOSE_QUOTA,
    BUSY: CLOSE_TRY_LATER,
}
"""WebSocket close code after an ERROR(scope = connection); `CLOSE_POLICY` for every other code."""


# Why the last round of a target used no draft of the hub: `why_off` of REPORT. `MEANINGS` says them in words.
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
"""Reasons for which weak features (`CLAMPED`) may be the cause."""

MEANINGS = {
    LATE: "the hub's drafts come too late to be waited for",
    SILENT: "the hub does not answer",
    CLOSED: "the hub has no session for it: away, warming, or it refused",
    EMPTY: "the hub had no draft token",
    POOR: "too few draft tokens are accepted to pay for verifying them",
    TIMED: "a plain step was timed, to see whether drafts pay",
    LOCAL: "the target's own drafts are worth more than the hub's",
    IDLE: "no answer is in progress",
    CLAMPED: "features of its model are not finite: drafts are weak",
}


# Why the drafts of a session have their present shape. `SHAPE_MEANINGS` says them in words.
FIRST = "first"
BEST = "best"
LOAD = "load"
NOT_PAYING = "not_paying"
TRIAL = "trial"
FIXED = "fixed"

SHAPE_MEANINGS = {
    FIRST: "what it asks for, until enough is known of it",
    BEST: "the best for this target",
    LOAD: "shorter, because of the others",
    NOT_PAYING: "none: plain decoding is faster",
    TRIAL: "tried again, to see whether it pays by now",
    FIXED: "as the hub was told",
}
