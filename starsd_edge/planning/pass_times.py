"""How long a target's verify pass takes by its rows (its width): one model for measured passes and for rounds.

Passes are measured by `bench verify`, or learnt from rounds as they are done. A `VerifyCurve` goes through either of
them and says what widths take that were not seen. `PassTimes` is the curve of a running target: it learns from its
rounds, and begins with the measured passes where there are some. A target reports its rounds to the hub, which draws
the same curve through them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median_low

import numpy as np
import numpy.typing as npt

ROW_SHARE = 0.03
"""Cost of each further row of a verify pass where it was not measured, as a share of the pass over one row."""
EXPECTED_ROUNDS = 64
"""Rounds for which measured passes count in `PassTimes`; afterwards only the times of the rounds do. A width that the
measured passes make look too slow would otherwise never be tried.
"""
_KEPT = 5
"""Last rounds of one width that are kept. Their median counts, so that a single slow round does not."""
_TRIED = 3
"""Rounds of a width from which on its times count: the first rounds of a new width are slow on many runtimes."""
_DRAWN = 16
"""Rows for which the curve is computed at least, so that it is not computed anew for each tree of a few more rows."""
_LEAST_S = 1e-6
"""Seconds that a round counts as at least. A coarse clock may measure 0, and rates are divided by these times."""
_FORGOTTEN = 256
"""Rounds after which `PassTimes` forgets a width that was not seen again: the machine's speed may have changed."""


@dataclass(frozen=True)
class VerifyCurve:
    """Seconds of a verify pass by its number of rows T, the root included.

    Attributes:
        seconds: measured at these T, of which one is 1.

    Raises:
        ValueError: T = 1 is not among them, or a time is not above 0.
    """

    seconds: Mapping[int, float]

    def __post_init__(self) -> None:
        if 1 not in self.seconds or min(self.seconds.values()) <= 0 or min(self.seconds) < 1:
            raise ValueError(f"no verify curve: {dict(self.seconds)}")

    @classmethod
    def through(cls, passes: Mapping[int, Sequence[float]]) -> VerifyCurve:
        """A curve from the seconds of several passes of each T. The least time of each T counts, because other work
        only adds to it, and no time is below that of a smaller T.
        """
        sizes = sorted(passes)
        least = accumulate((min(passes[rows]) for rows in sizes), max)
        return cls(dict(zip(sizes, least, strict=True)))

    @classmethod
    def of_rounds(cls, seconds: Mapping[int, float]) -> VerifyCurve:
        """A curve from the seconds of rounds by their width, of which at least one is given.

        No time is above that of a greater width: a narrower round that took longer was held up by other work. Beyond
        the widest, times lie on the line through the narrowest and the widest, since two neighbours may differ by
        chance. Below the narrowest, and where only one width was seen, each row costs `ROW_SHARE` of a plain step.
        """
        widths = sorted(seconds)
        times = [*accumulate((seconds[rows] for rows in reversed(widths)), min)][::-1]
        plain_s = times[0] / (1 + ROW_SHARE * (widths[0] - 1))
        wide = widths[-1] - widths[0]
        row_s = (times[-1] - times[0]) / wide if wide else ROW_SHARE * plain_s
        beyond = {2 * widths[-1]: times[-1] + widths[-1] * row_s}
        return cls({1: plain_s, **dict(zip(widths, times, strict=True)), **beyond})

    def at(self, rows: float) -> float:
        """Seconds of a pass over this many rows: on the line between its neighbours, or on the last one drawn on."""
        sizes, times = self._points
        if len(sizes) == 1 or rows <= 1:
            return self.seconds[1]
        high = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        low = high - 1
        return times[low] + (rows - sizes[low]) * (times[high] - times[low]) / (sizes[high] - sizes[low])

    def scaled(self, factor: float) -> VerifyCurve:
        """The curve with all times multiplied by this factor, which is above 0."""
        return VerifyCurve({rows: factor * seconds for rows, seconds in self.seconds.items()})

    def ratio(self, rows: float) -> float:
        """verify(T) / verify(1)."""
        return self.at(rows) / self.seconds[1]

    @cached_property
    def _points(self) -> tuple[list[int], list[float]]:
        """Measured T in ascending order, and their seconds."""
        sizes = sorted(self.seconds)
        return sizes, [self.seconds[size] for size in sizes]


@dataclass(frozen=True)
class VerifyCurves:
    """verify(T) by the number of committed tokens: attention over more of them takes longer.

    Attributes:
        by_committed: at least one.

    Raises:
        ValueError: there is none.
    """

    by_committed: Mapping[int, VerifyCurve]

    def __post_init__(self) -> None:
        if not self.by_committed:
            raise ValueError("no verify curves")

    def at(self, committed: int) -> VerifyCurve:
        """The curve for this number of committed tokens: between those of its neighbours, or the nearest one."""
        lengths = sorted(self.by_committed)
        after = bisect_left(lengths, committed)
        if after == 0 or after == len(lengths):
            return self.by_committed[lengths[min(after, len(lengths) - 1)]]
        low, high = lengths[after - 1], lengths[after]
        one, other = self.by_committed[low], self.by_committed[high]
        share = (committed - low) / (high - low)
        widths = {*one.seconds, *other.seconds}
        return VerifyCurve({rows: (1 - share) * one.at(rows) + share * other.at(rows) for rows in widths})


class RecentTimes:
    """The last few seconds of each width that was seen recently.

    Args:
        forgotten_after: rounds after which a width that was not seen again is dropped.
        most_widths: widths kept at most: a new one replaces the one not seen for longest.
    """

    def __init__(self, forgotten_after: int, most_widths: int | None = None) -> None:
        self._forgotten_after = forgotten_after
        self._most_widths = most_widths
        self._recent: dict[int, deque[float]] = {}
        self._seen_at: dict[int, int] = {}
        self._rounds = 0

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, rows: int, seconds: float) -> None:
        """A round that verified this many rows took this many seconds without its waits."""
        self._rounds += 1
        recent = self._recent.pop(rows, None) or deque(maxlen=_KEPT)  # put back as the last of the dict
        recent.append(max(_LEAST_S, seconds))
        self._recent[rows] = recent
        self._seen_at[rows] = self._rounds
        oldest = next(iter(self._recent))
        is_one_too_many = self._most_widths is not None and len(self._recent) > self._most_widths
        if is_one_too_many or self._seen_at[oldest] < self._rounds - self._forgotten_after:
            del self._recent[oldest], self._seen_at[oldest]

    def medians(self, tried: int = 1) -> dict[int, float]:
        """Median seconds of the widths seen at least `tried` times, the one not seen for longest first."""
        return {rows: median_low(kept) for rows, kept in self._recent.items() if len(kept) >= tried}

    def least(self) -> dict[int, float]:
        """Least seconds of each width."""
        return {rows: min(kept) for rows, kept in self._recent.items()}


class PassTimes:
    """Seconds of a target's round without its waits, for every width.

    Where verify passes of its engine were measured before, that curve stands for widths not seen yet, scaled by those
    that were, for the first `EXPECTED_ROUNDS` rounds.

    Attributes:
        plain_age: rounds since the last of width 1; 0 before any.
    """

    def __init__(self, expected: VerifyCurve | None = None) -> None:
        self._expected = expected
        self.plain_age = 0
        self._recent = RecentTimes(_FORGOTTEN)
        self._rounds = 0
        self._curve = np.zeros(0)
        """Seconds by rows, as far as they were asked for since the last round; empty after each round."""

    def add(self, rows: int, seconds: float) -> None:
        """A round that verified this many rows, the root included, took this many seconds without its waits."""
        self._rounds += 1
        self.plain_age = 0 if rows == 1 else self.plain_age + 1
        self._recent.add(rows, seconds)
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
        return len(self._recent) > 0 or self.expected is not None

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step; 0 while nothing is known."""
        return float(self.curve(1)[0])

    def curve(self, rows: int) -> npt.NDArray[np.float64]:
        """float64 [rows]: seconds of rounds of 1, 2 ... rows, never falling; zeros while nothing is known.

        Widths that no round had are as `VerifyCurve.of_rounds` has them. While a measured curve is expected, widths
        outside those of the rounds follow that curve, scaled to the nearest width of a round.
        """
        if not self.is_known:
            return np.zeros(rows)
        if len(self._curve) < rows:
            self._curve = self._drawn(np.arange(1, max(rows, _DRAWN) + 1))
        return self._curve[:rows]

    def _drawn(self, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        measured = self._recent.medians(_TRIED) or self._recent.least()
        if self.expected is None:
            return _seconds(VerifyCurve.of_rounds(measured), wanted)
        passes = np.maximum.accumulate(_seconds(self.expected, wanted))
        if not measured:
            return passes
        rounds = VerifyCurve.of_rounds(measured)
        first, last = min(measured), max(measured)
        below = np.minimum(passes * rounds.at(first) / self.expected.at(first), rounds.at(first))
        above = np.maximum(passes * rounds.at(last) / self.expected.at(last), rounds.at(last))
        within = _seconds(rounds, wanted)
        return np.where(wanted < first, below, np.where(wanted > last, above, within))


def _seconds(curve: VerifyCurve, widths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """float64, as long as `widths`: the curve at each of them."""
    return np.asarray([curve.at(rows) for rows in widths.tolist()])
