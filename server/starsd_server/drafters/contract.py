"""The Drafter contract.

All calls but the properties and `refuses` come from the hub's drafting thread, one at a time, so a drafter needs no
locks. Its state per session lives between `open` and `close` and counts against the hub's memory.

`extend` and `draft` take several sessions at once, and what goes wrong with one of them comes back beside what the
others get: it must not cost them their pass. What a call raises, on the other hand, concerns all its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from starsd_edge.errors import StarsdError
from starsd_edge.protocol.codes import FINGERPRINT
from starsd_edge.protocol.features import NO_FEATURES, choose_codec
from starsd_edge.protocol.hub_side import Offer, Refusal
from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree


class SessionRefusedError(StarsdError):
    """A drafter works but does not serve this session: it is full, or cannot take the rows. The line goes to the target
    of this session.
    """


def no_room(drafter: str, max_sessions: int) -> SessionRefusedError:
    """The error of a drafter that holds as many sessions as it may."""
    return SessionRefusedError(
        f"the hub's {drafter} drafter holds {max_sessions} sessions, its limit: "
        "try again later, or start the hub with a larger --max-sessions"
    )


Failures = Mapping[int, Exception]
"""Sessions that are lost, each with its error: the drafter is to be told to close them, and does no more for them."""

DraftOutcome = DraftTree | Exception
"""What `draft` gives a session: its tree, or the error that it is lost by."""


class Drafter(Protocol):
    """Proposes a draft tree under the last token of each session."""

    @property
    def kind(self) -> str:
        """ "ngram", "causal-lm" or "eagle", with a number where a hub has several of a kind: its name on this hub."""

    @property
    def fingerprint(self) -> str:
        """Hash of the checkpoint that the drafter is made from; shown in WELCOME."""

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """Codecs of the features that it can use, of which it needs one; empty when ids are enough."""

    def refuses(self, hello: Hello) -> str | None:
        """Why a target with this HELLO cannot use the drafter, with the full fingerprints of both sides. None when it
        can, for every request that keeps to this HELLO.
        """

    def warm_up(self) -> None:
        """Do the one-time work (allocation, compilation) that the first draft would otherwise wait for."""

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """Begin a session whose token at position `first_row` is `t_first`.

        Raises:
            SessionRefusedError: no room for another session.
        """

    def close(self, session: int) -> int:
        """Free the session's state; the number of rows freed, 0 for a session it does not have."""

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        """Take in true rows of several sessions, ragged, at most one entry per session.

        Returns:
            The sessions that are lost; the others have taken in their rows as they would have alone.
        """

    def base_len(self, session: int) -> int:
        """Position of the session's last token, under which a tree drafted now hangs: as many rows as it has taken in,
        those before its first counted.
        """

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """One tree per session, under its last token, none larger than its shape."""


def extend_one(drafter: Drafter, rows: NewRows) -> None:
    """`Drafter.extend` for one session, whose error it raises."""
    for error in drafter.extend([rows]).values():
        raise error


def draft_one(drafter: Drafter, session: int, shape: DraftShape) -> DraftTree:
    """`Drafter.draft` for one session, whose error it raises."""
    (outcome,) = drafter.draft([session], [shape])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def extend_each(batch: Sequence[NewRows], extend: Callable[[NewRows], None]) -> Failures:
    """`Drafter.extend` of a drafter that takes one session after the other."""
    failures: dict[int, Exception] = {}
    for rows in batch:
        try:
            extend(rows)
        except Exception as error:  # whatever one session's rows raise, the others' are still to be taken in
            failures[rows.session] = error
    return failures


def draft_each(
    batch: Sequence[int], shapes: Sequence[DraftShape], draft: Callable[[int, DraftShape], DraftTree]
) -> Sequence[DraftOutcome]:
    """`Drafter.draft` of a drafter that drafts for one session after the other."""
    outcomes: list[DraftOutcome] = []
    for session, shape in zip(batch, shapes, strict=True):
        try:
            outcomes.append(draft(session, shape))
        except Exception as error:  # whatever one session's draft raises, the others are still to be drafted
            outcomes.append(error)
    return outcomes


_REPAIR = "see the hub's log, and start the hub again once that is repaired"
_REMEDY = "start the hub with the target's own bundle: starsd-edge run-draft BUNDLE"


class DrafterRegistry:
    """The configured drafters in order of preference, and the one that fits every target.

    Args:
        preferred: the first of them that fits is offered.
        fallback: offered, with a notice, when none fits; ids are enough for it.
        required: refuse a target that no preferred drafter fits, instead of falling back.
    """

    def __init__(self, preferred: Sequence[Drafter], fallback: Drafter, required: bool) -> None:
        self._preferred = list(preferred)
        self._fallback = fallback
        self._required = required

    @property
    def drafters(self) -> list[Drafter]:
        """All configured drafters, each once."""
        fallback = [] if self._fallback in self._preferred else [self._fallback]
        return [*self._preferred, *fallback]

    @property
    def names(self) -> str:
        """Names of the preferred drafters, for people."""
        return ",".join(drafter.kind for drafter in self._preferred)

    def offer(self, hello: Hello, broken: Callable[[str], str | None] = lambda kind: None) -> Offer | Refusal:
        """The first drafter that fits this target and works; else the fallback with a line that says why and what mends
        it.

        Args:
            broken: why the drafter of a kind cannot draft for anybody; None where it can.
        """
        reasons: list[str] = []
        remedies: list[str] = []
        for drafter in self._preferred:
            fault = broken(drafter.kind)
            fit = _fit(drafter, hello) if fault is None else fault
            if isinstance(fit, Offer):
                return fit
            reasons.append(f"{drafter.kind}: {fit}")
            remedies.append(_REMEDY if fault is None else _REPAIR)
        why, remedy = "; ".join(reasons), " or ".join(dict.fromkeys(remedies))
        if self._required:
            return Refusal(FINGERPRINT, f"no drafter of this hub fits: {why}. To mend it, {remedy}")
        notice = f"{why}. Drafting by n-gram instead; to mend it, {remedy}"
        return Offer(self._fallback.kind, self._fallback.fingerprint, NO_FEATURES, notice)


def _fit(drafter: Drafter, hello: Hello) -> Offer | str:
    """What this drafter offers the target, or why it does not fit."""
    reason = drafter.refuses(hello)
    if reason is not None:
        return reason
    codec = choose_codec(hello.codecs, drafter.feature_codecs)
    if codec is None:
        theirs = ", ".join(hello.codecs) or "none"
        return f"it needs features as {' or '.join(drafter.feature_codecs)}, the target sends {theirs}"
    return Offer(drafter.kind, drafter.fingerprint, codec)
