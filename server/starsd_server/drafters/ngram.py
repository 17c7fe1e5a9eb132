"""Drafting by n-gram lookup in the session's own text: needs no model and fits every target."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.ngram import NgramIndex
from starsd_edge.speculation.tree import DraftShape
from starsd_server.drafters.contract import DraftOutcome, Failures, draft_each, extend_each, no_room

NGRAM = "ngram"


class NgramDrafter:
    """One `NgramIndex` per session."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._texts: dict[int, NgramIndex] = {}
        self._first_rows: dict[int, int] = {}

    @property
    def kind(self) -> str:
        """See `Drafter`."""
        return NGRAM

    @property
    def fingerprint(self) -> str:
        """See `Drafter`: it is made from nothing."""
        return NGRAM

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """See `Drafter`."""
        return ()

    def refuses(self, hello: Hello) -> str | None:
        """See `Drafter`: ids are ids, whatever they stand for."""
        return None

    def warm_up(self) -> None:
        """Nothing to do."""

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """See `Drafter`."""
        if len(self._texts) >= self._max_sessions:
            raise no_room(NGRAM, self._max_sessions)
        self._texts[session] = NgramIndex()
        self._texts[session].append([t_first])
        self._first_rows[session] = first_row

    def close(self, session: int) -> int:
        """See `Drafter`."""
        text = self._texts.pop(session, None)
        self._first_rows.pop(session, None)
        return 0 if text is None else len(text) - 1

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        """See `Drafter`."""
        return extend_each(batch, lambda rows: self._texts[rows.session].append(rows.ids))

    def base_len(self, session: int) -> int:
        """See `Drafter`."""
        return self._first_rows[session] + len(self._texts[session]) - 1

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """See `Drafter`."""
        return draft_each(batch, shapes, lambda session, shape: self._texts[session].draft(shape))
