"""What a round takes the target itself, by the number of rows that it verifies: learnt as rounds go by."""

from __future__ import annotations

from collections import deque
from statistics import median_low

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.curve import ROW_SHARE, never_falling

_KEPT = 5
"""Rounds of one width that count; of them the median, so that a hiccup does not."""
_TRIED = 3
"""A width counts from so many rounds on: the first of a new width are slow on many runtimes."""
_DRAWN = 16
"""Rows that a curve is drawn for at least."""
_LEAST_S = 1e-6
"""A round counts as at least this long: clocks that tick coarsely see none at all, and times are divided by."""
_FORGOTTEN = 256
"""A width that was not seen for so many rounds is forgotten: the machine may have changed."""


class PassTimes:
    """Seconds of a round without its waits, for every width: rows of the verify pass, the root included.

    Attributes:
        plain_age: rounds since the last of width 1; 0 before any.
    """

    def __init__(self) -> None:
        self.plain_age = 0
        self._recent: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}
        self._rounds = 0
        self._curve = np.zeros(0)
        """As far as it was asked for since the last round."""

    def add(self, rows: int, seconds: float) -> None:
        """A round over so many rows took this long."""
        self._rounds += 1
        self.plain_age = 0 if rows == 1 else self.plain_age + 1
        self._recent.setdefault(rows, deque(maxlen=_KEPT)).append(max(_LEAST_S, seconds))
        self._seen_at[rows] = self._rounds
        for width in [width for width, seen in self._seen_at.items() if seen < self._rounds - _FORGOTTEN]:
            del self._recent[width], self._seen_at[width]
        self._curve = np.zeros(0)

    @property
    def is_known(self) -> bool:
        """Whether any round was timed."""
        return bool(self._recent)

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step; 0 before anything was timed."""
        return float(self.curve(1)[0])

    def curve(self, rows: int) -> npt.NDArray[np.float64]:
        """Seconds of rounds of 1, 2 ... `rows` rows, never falling; zeros before anything was timed.

        Between measured widths on the line between them; beyond the widest on the line through all of them; below the
        narrowest, and where there is only one, with `ROW_SHARE` for each row.
        """
        if not self.is_known:
            return np.zeros(rows)
        if len(self._curve) < rows:
            self._curve = self._drawn(max(rows, _DRAWN))
        return self._curve[:rows]

    def _drawn(self, rows: int) -> npt.NDArray[np.float64]:
        widths, seconds = self._measured()
        wanted = np.arange(1, rows + 1)
        plain = seconds[0] / (1 + ROW_SHARE * (widths[0] - 1))
        slope = (seconds[-1] - seconds[0]) / (widths[-1] - widths[0]) if len(widths) > 1 else ROW_SHARE * plain
        within = np.interp(wanted, [1, *widths], [plain, *seconds])
        return within + slope * np.maximum(0, wanted - widths[-1])

    def _measured(self) -> tuple[list[int], list[float]]:
        """Widths in ascending order, and their seconds."""
        tried = {rows: median_low(kept) for rows, kept in self._recent.items() if len(kept) >= _TRIED}
        known = tried or {rows: min(kept) for rows, kept in self._recent.items()}
        return sorted(known), never_falling(known)
