"""The time of a verify pass, verify(T), of one bundle on one machine, as a curve through measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

ROW_SHARE = 0.03
"""Cost of each further row of a verify pass where it was not measured, as a share of the pass over one row."""


def never_falling(seconds: Mapping[int, float]) -> list[float]:
    """Seconds of rounds by ascending width (rows), each lowered to that of the fastest wider one: a narrower round that
    took longer was held up by other work, which only adds time.
    """
    return [*accumulate((seconds[rows] for rows in sorted(seconds, reverse=True)), min)][::-1]


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
        """A curve from the seconds of rounds by their width (rows), of which at least one is given. No time is above
        that of a greater width. Where only one width was seen, or none of 1, each row counts for `ROW_SHARE`.
        """
        widths = sorted(seconds)
        times = never_falling(seconds)
        points = dict(zip(widths, times, strict=True))
        plain_s = times[0] / (1 + ROW_SHARE * (widths[0] - 1))
        points[1] = plain_s
        if len(points) == 1 or len(widths) == 1:
            beyond = 2 * widths[-1]
            points[beyond] = plain_s * (1 + ROW_SHARE * (beyond - 1))
        return cls(points)

    def at(self, rows: float) -> float:
        """Seconds of a pass over this many rows: on the line between its neighbours, or on the last one drawn on."""
        points = sorted(self.seconds.items())
        if len(points) == 1 or rows <= 1:
            return self.seconds[1]
        lines = list(pairwise(points))
        (low, low_s), (high, high_s) = next((line for line in lines if rows <= line[1][0]), lines[-1])
        return low_s + (rows - low) * (high_s - low_s) / (high - low)

    def scaled(self, factor: float) -> VerifyCurve:
        """The curve with all times multiplied by this factor, which is above 0."""
        return VerifyCurve({rows: factor * seconds for rows, seconds in self.seconds.items()})

    def ratio(self, rows: float) -> float:
        """verify(T) / verify(1)."""
        return self.at(rows) / self.seconds[1]


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
