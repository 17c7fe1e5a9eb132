"""Rows of one session that the drafter has not seen, in order; and when a prefill gets a turn between drafts, and how
many rows a turn takes, so that neither holds up the other.
"""

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
        """Number of waiting rows that lie before the root at this position."""
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


ROWS_PER_TURN = 64
"""Most rows of one prefill turn. It bounds how long the requests of other sessions may have to wait for a turn."""
LEAST_ROWS_PER_TURN = 16
"""Least rows of one prefill turn, however slow the drafter is at rows: the rows of one round must fit into a turn."""
DRAFTS_PER_FEED = 4
"""Passes between two prefill turns while both drafts and prefill wait, so that neither starves the other; fewer where a
turn takes much less time than a pass.
"""
_GAIN = 1 / 8
"""Weight of the newest sample in the mean times of a pass and of a row: about the last eight count."""


class FeedTurns:
    """Decides when a prefill turn comes between drafts, and how many rows it takes.

    A turn takes no longer than a pass, as far as their times are known. While drafts wait, turns take at most one part
    in `drafts_per_feed` + 1 of the drafter's time.

    Args:
        most_rows: most rows of a turn.
        drafts_per_feed: passes, or passes' worth of time, between two turns.
    """

    def __init__(self, most_rows: int, drafts_per_feed: int) -> None:
        self.rows = most_rows
        """Rows of the next turn."""
        self._most_rows = most_rows
        self._drafts_per_feed = drafts_per_feed
        self._passes = 0
        self._drafted_s = 0.0
        self._turn_s = 0.0
        self._pass_s = 0.0
        self._row_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next turn is a prefill's although drafts wait."""
        paid_for = self._turn_s > 0 and self._drafted_s >= self._drafts_per_feed * self._turn_s
        return paid_for or self._passes >= self._drafts_per_feed

    def passed(self) -> None:
        """A pass is begun."""
        self._passes += 1

    def begin(self) -> None:
        """A turn is begun."""
        self._passes = 0
        self._drafted_s = 0.0

    def drafted(self, seconds: float) -> None:
        """A pass took this many seconds."""
        self._drafted_s += seconds
        self._pass_s += (seconds - self._pass_s) * (_GAIN if self._pass_s else 1.0)
        self._size()

    def fed(self, rows: int, seconds: float) -> None:
        """A turn of `rows` rows took `seconds`."""
        self._turn_s = seconds
        self._row_s += (seconds / rows - self._row_s) * (_GAIN if self._row_s else 1.0)
        self._size()

    def _size(self) -> None:
        if self._pass_s and self._row_s:
            least = min(LEAST_ROWS_PER_TURN, self._most_rows)
            self.rows = max(least, min(self._most_rows, int(self._pass_s / self._row_s)))
