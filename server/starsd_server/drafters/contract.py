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
from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree


class SessionRefusedError(StarsdError):
    """A drafter is sound but does not serve this session (full, rows it cannot take); its line is shown there."""


Failures = Mapping[int, Exception]
"""Sessions that are lost, each with its error: the drafter is to be told to close them, and does no more for them."""

DraftOutcome = DraftTree | Exception
"""What `draft` gives a session: its tree, or the error that it is lost by."""


class Drafter(Protocol):
    """Guesses a tree under the last token of each session."""

    @property
    def kind(self) -> str:
        """ "ngram", "causal-lm" or "eagle", with a number where a hub has several of a kind: its name on this hub."""

    @property
    def fingerprint(self) -> str:
        """What it is made from: shown in WELCOME."""

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """Codecs of the features that it can use, of which it needs one; empty when ids are enough."""

    def refuses(self, hello: Hello) -> str | None:
        """Why a target that says this of itself cannot use it, with what each side has in full; None when it can, for
        every request that keeps to this HELLO.
        """

    def warm_up(self) -> None:
        """Do once what the first draft would otherwise wait for."""

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
        except Exception as error:  # as above
            outcomes.append(error)
    return outcomes
