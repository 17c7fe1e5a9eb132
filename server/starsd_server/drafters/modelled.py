"""Drafters of the timing backend: a real one that is made slower, or always wrong. Never part of a hub for users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.drafters.contract import Drafter, DraftOutcome, Failures


class _Wrapped:
    """A drafter that passes everything on to another."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def kind(self) -> str:
        """See `Drafter`."""
        return self._drafter.kind

    @property
    def fingerprint(self) -> str:
        """See `Drafter`."""
        return self._drafter.fingerprint

    @property
    def feature_codecs(self) -> tuple[str, ...]:
        """See `Drafter`."""
        return self._drafter.feature_codecs

    def refuses(self, hello: Hello) -> str | None:
        """See `Drafter`."""
        return self._drafter.refuses(hello)

    def warm_up(self) -> None:
        """See `Drafter`."""
        self._drafter.warm_up()

    def open(self, session: int, first_row: int, t_first: int) -> None:
        """See `Drafter`."""
        self._drafter.open(session, first_row, t_first)

    def close(self, session: int) -> int:
        """See `Drafter`."""
        return self._drafter.close(session)

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        """See `Drafter`."""
        return self._drafter.extend(batch)

    def base_len(self, session: int) -> int:
        """See `Drafter`."""
        return self._drafter.base_len(session)

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """See `Drafter`."""
        return self._drafter.draft(batch, shapes)


class SlowedDrafter(_Wrapped):
    """Keeps the drafting thread busy for as long as a slower device would. The rows of a round are part of its pass; a
    prefill takes its real time.

    Args:
        drafter: does the work; a pass that takes longer by itself is not shortened.
        begin: called at the beginning of a pass; its result is passed to `end`.
        end: called with that and the shapes that were asked for; returns when the pass is over.
    """

    def __init__(
        self, drafter: Drafter, begin: Callable[[], float], end: Callable[[float, Sequence[DraftShape]], None]
    ) -> None:
        super().__init__(drafter)
        self._begin = begin
        self._end = end
        self._fed: set[int] = set()
        self._fed_since = 0.0

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        """See `Drafter`."""
        self._fed, self._fed_since = {rows.session for rows in batch}, self._begin()
        return self._drafter.extend(batch)

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """See `Drafter`."""
        began = self._fed_since if self._fed and self._fed <= set(batch) else self._begin()
        self._fed = set()
        trees = self._drafter.draft(batch, shapes)
        self._end(began, shapes)
        return trees


class WrongDrafter(_Wrapped):
    """Drafts as many tokens as the other drafter, none of which is ever accepted.

    Args:
        wrong_ids: tokens that no text holds, as many as a node may have children.
    """

    def __init__(self, drafter: Drafter, wrong_ids: Sequence[int]) -> None:
        super().__init__(drafter)
        self._wrong_ids = np.asarray(wrong_ids, dtype=np.int64)

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> Sequence[DraftOutcome]:
        """See `Drafter`."""
        return [
            self._wrong(outcome) if isinstance(outcome, DraftTree) else outcome
            for outcome in self._drafter.draft(batch, shapes)
        ]

    def _wrong(self, tree: DraftTree) -> DraftTree:
        """The same tree with other tokens, of which no two siblings share one."""
        tokens: npt.NDArray[np.int64] = np.zeros(len(tree), dtype=np.int64)
        for children in tree.children.values():
            for place, node in enumerate(children.values()):
                tokens[node] = self._wrong_ids[place % len(self._wrong_ids)]
        return DraftTree(tokens, tree.parents)
