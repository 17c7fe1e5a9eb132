"""Rows of one session that the drafter has not seen, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from starsd_edge.protocol.rows import NewRows


class PendingRows:
    """A queue of rows: in as they arrive, out in pieces of any size.

    Attributes:
        owner: the key that the session belongs to.
        count: rows that wait.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.count = 0
        self._parts: deque[NewRows] = deque()

    @property
    def feature_bytes(self) -> int:
        """Memory of the features that wait."""
        return sum(map(feature_bytes, self._parts))

    def append(self, rows: NewRows) -> None:
        """Rows that follow those that wait."""
        self._parts.append(rows)
        self.count += len(rows.ids)

    def before(self, base_len: int) -> int:
        """How many of them lie before the root at this position."""
        return min(self.count, max(0, base_len - self._parts[0].first_row)) if self._parts else 0

    def take(self, limit: int) -> NewRows:
        """Up to `limit` rows, at least one, as one piece."""
        parts: list[NewRows] = []
        room = limit
        while self._parts and room:
            part = self._parts.popleft()
            if len(part.ids) > room:
                part, rest = _split(part, room)
                self._parts.appendleft(rest)
            parts.append(part)
            room -= len(part.ids)
        self.count -= limit - room
        return _join(parts)


def feature_bytes(rows: NewRows) -> int:
    """Memory of the features of these rows."""
    return 0 if rows.features is None else rows.features.nbytes


def _split(rows: NewRows, at: int) -> tuple[NewRows, NewRows]:
    # What stays is copied: a view would hold the memory of what goes.
    head, tail = (None, None) if rows.features is None else (rows.features[:at], rows.features[at:].copy())
    return (
        replace(rows, ids=rows.ids[:at], features=head),
        replace(rows, first_row=rows.first_row + at, ids=rows.ids[at:], features=tail),
    )


def _join(parts: Sequence[NewRows]) -> NewRows:
    if len(parts) == 1:
        return parts[0]
    ids = [token for part in parts for token in part.ids]
    features = [part.features for part in parts if part.features is not None]
    return replace(parts[0], ids=ids, features=np.concatenate(features) if features else None)
