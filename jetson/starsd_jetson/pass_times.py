"""Seconds of a target's round by the number of rows that it verifies (its width), learnt from the rounds.

Where verify passes of this engine were measured before (`bench verify`), that curve stands for widths not seen yet,
scaled by those that were. It counts for the first `EXPECTED_ROUNDS` rounds only: a width that it makes look too slow
would otherwise never be tried.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.curve import ROW_SHARE, VerifyCurve, never_falling

_KEPT = 5
"""Last rounds of one width that are kept. Their median counts, so that a single slow round does not."""
_TRIED = 3
"""Rounds of a width from which on its times count: the first rounds of a new width are slow on many runtimes."""
_DRAWN = 16
"""Rows for which the curve is computed at least, so that it is not computed anew for each tree of a few more rows."""
_LEAST_S = 1e-6
"""Seconds that a round counts as at least. A coarse clock may measure 0, and rates are divided by these times."""
_FORGOTTEN = 256
"""Rounds after which a width that was not seen again is forgotten: the machine's speed may have changed."""
EXPECTED_ROUNDS = 64
"""Rounds after which the curve measured before no longer counts, but only the times of the rounds themselves."""


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
        """Seconds by rows, as far as they were asked for since the last round; empty after each round."""

    def add(self, rows: int, seconds: float) -> None:
        """A round that verified this many rows, the root included, took this many seconds without its waits."""
        self._rounds += 1
        self.plain_age = 0 if rows == 1 else self.plain_age + 1
        self._recent.setdefault(rows, deque(maxlen=_KEPT)).append(max(_LEAST_S, seconds))
        self._seen_at[rows] = self._rounds
        for width in [width for width, seen in self._seen_at.items() if seen < self._rounds - _FORGOTTEN]:
            del self._recent[width], self._seen_at[width]
        self._curve = np.zeros(0)

    def expect(self, passes: VerifyCurve) -> None:
        """Take the curve of verify passes that was measured on about as many committed tokens as there are now."""
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

        Between two measured widths, times lie on the straight line between them. Beyond the measured widths they follow
        the expected curve, scaled to the nearest measured width, where there is such a curve. Otherwise times beyond
        the widest lie on the line through the narrowest and the widest. Below the narrowest, and where only one width
        was measured, each row costs `ROW_SHARE` of a plain step.
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
