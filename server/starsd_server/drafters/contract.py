"""The Drafter contract.

All calls but the properties and `refuses` come from the hub's drafting thread, one at a time, so a drafter needs no
locks. Its state per session lives between `open` and `close` and counts against the hub's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starsd_edge.errors import StarsdError
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree


class SessionRefusedError(StarsdError):
    """A drafter is sound but does not serve this session (full, rows it cannot take); its line is shown there."""


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

    def refuses(self, tokenizer_fp: str, feature_fp: str) -> str | None:
        """Why a target with these fingerprints cannot use it, both named; None when it can."""

    def warm_up(self) -> None:
        """Do once what the first draft would otherwise wait for."""

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """Begin a session whose token at position `first_row` is `t_first`.

        Raises:
            SessionRefusedError: no room for another session.
        """

    def close(self, session: int) -> int:
        """Free the session's state; the number of rows freed, 0 for a session it does not have."""

    def extend(self, batch: Sequence[NewRows]) -> None:
        """Take in true rows of several sessions, ragged, at most one entry per session."""

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        """One tree per session, under its last token, none larger than its shape."""
