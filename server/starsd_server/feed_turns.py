"""When a prefill gets a turn between drafts, and how many rows a turn takes, so that neither holds up the other."""

from __future__ import annotations

ROWS_PER_TURN = 64
"""Most rows of one prefill turn: how long the requests of other sessions may have to wait for it."""
LEAST_ROWS_PER_TURN = 16
"""However slow the drafter is at them: what a round brings is never more than a turn."""
DRAFTS_PER_FEED = 4
"""Passes between two prefill turns while both wait, so that neither starves the other; fewer where a turn takes much
less time than a pass.
"""
_GAIN = 1 / 8


class FeedTurns:
    """A turn takes no longer than a pass, as far as is known, and turns take no more than one part in
    `drafts_per_feed` + 1 of the drafter's time while drafts wait.

    Args:
        most_rows: of a turn.
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
        """A pass took so long."""
        self._drafted_s += seconds
        self._pass_s += (seconds - self._pass_s) * (_GAIN if self._pass_s else 1.0)
        self._size()

    def fed(self, rows: int, seconds: float) -> None:
        """A turn of so many rows took so long."""
        self._turn_s = seconds
        self._row_s += (seconds / rows - self._row_s) * (_GAIN if self._row_s else 1.0)
        self._size()

    def _size(self) -> None:
        if self._pass_s and self._row_s:
            least = min(LEAST_ROWS_PER_TURN, self._most_rows)
            self.rows = max(least, min(self._most_rows, int(self._pass_s / self._row_s)))
