"""What a round takes the target itself, by the number of rows that it verifies: learnt as rounds go by.

Where verify passes of this engine were measured before (`bench verify`), that curve stands for widths not seen yet,
scaled by those that were. It counts for the first rounds only: what it foretells wrongly must not stay untried.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.curve import ROW_SHARE, VerifyCurve, never_falling

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
EXPECTED_ROUNDS = 64
"""After so many rounds only what they took counts."""


class PassTimes:
    """Seconds of a round without its waits, for every width: rows of the verify pass, the root included.

    Attributes:
        plain_age: rounds since the last of width 1; 0 before any.
        expected: seconds of verify passes as measured before; None where they were not.
    """

    def __init__(self, expected: VerifyCurve | None = None) -> None:
        self._expected = expected
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

    def expect(self, passes: VerifyCurve) -> None:
        """What verify passes were measured to take on as many tokens as there are now."""
        self._expected = passes
        self._curve = np.zeros(0)

    @property
    def expected(self) -> VerifyCurve | None:
        """What verify passes are expected to take where no round has shown it; None where nothing is."""
        return self._expected if self._rounds < EXPECTED_ROUNDS else None

    @property
    def is_known(self) -> bool:
        """Whether any round was timed, or is expected to take some time."""
        return bool(self._recent) or self.expected is not None

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step; 0 while nothing is known."""
        return float(self.curve(1)[0])

    def curve(self, rows: int) -> npt.NDArray[np.float64]:
        """Seconds of rounds of 1, 2 ... `rows` rows, never falling; zeros while nothing is known.

        Between measured widths on the line between them. Beyond them as the expected curve goes on from there, where
        there is one. Else, beyond the widest, on the line through all of them; below the narrowest, and where there is
        only one, with `ROW_SHARE` for each row.
        """
        if not self.is_known:
            return np.zeros(rows)
        if len(self._curve) < rows:
            self._curve = self._drawn(max(rows, _DRAWN))
        return self._curve[:rows]

    def _drawn(self, rows: int) -> npt.NDArray[np.float64]:
        wanted = np.arange(1, rows + 1)
        expected = self.expected
        if expected is not None:
            return self._as_expected(expected, wanted)
        widths, seconds = self._measured()
        plain = seconds[0] / (1 + ROW_SHARE * (widths[0] - 1))
        slope = (seconds[-1] - seconds[0]) / (widths[-1] - widths[0]) if len(widths) > 1 else ROW_SHARE * plain
        within = np.interp(wanted, [1, *widths], [plain, *seconds])
        return within + slope * np.maximum(0, wanted - widths[-1])

    def _as_expected(self, expected: VerifyCurve, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        passes = np.maximum.accumulate([expected.at(rows) for rows in wanted.tolist()])
        if not self._recent:
            return passes
        widths, seconds = self._measured()
        first, last = (seconds[end] / expected.at(widths[end]) for end in (0, -1))
        beyond = np.where(
            wanted < widths[0], np.minimum(first * passes, seconds[0]), np.maximum(last * passes, seconds[-1])
        )
        within = (widths[0] <= wanted) & (wanted <= widths[-1])
        return np.where(within, np.interp(wanted, widths, seconds), beyond)

    def _measured(self) -> tuple[list[int], list[float]]:
        """Widths in ascending order, and their seconds."""
        tried = {rows: median_low(kept) for rows, kept in self._recent.items() if len(kept) >= _TRIED}
        known = tried or {rows: min(kept) for rows, kept in self._recent.items()}
        return sorted(known), never_falling(known)
