"""A duration that is measured again and again: smoothed as in RFC 6298, and followed at once where it changes.

RFC 6298 alone needs a dozen samples to get to a new level, and keeps a large variance for longer still. So beside it
runs a two-sided CUSUM test (Page, 1954) on how many mean deviations each sample lies off, cut to `_MOST_OFF` so that no
single sample, however wild, is taken for a change. When it says that the level has changed, the estimate begins anew
from the samples since.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

_SMOOTHED_GAIN = 1 / 8
"""Weight of a new sample in the smoothed time (alpha of RFC 6298, section 2)."""
_DEVIATION_GAIN = 1 / 4
"""Weight of a new sample in the mean deviation (beta of RFC 6298, section 2)."""
_MOST_OFF = 4.0
"""Mean deviations that one sample counts for at most in the CUSUM test."""
_SLACK = 1.0
"""Mean deviations by which a sample may be off without being evidence of a change."""
_ALARM = 7.0
"""Sum of deviations beyond the slack, in mean deviations, at which the level has changed: three samples in a row that
are far off, or more samples that are less far off.
"""
_MOST_FOLDED = 3.0
"""Mean deviations of a sample that enter the smoothed estimates at most, before a change is certain."""
_LEAST_SHARE = 1 / 16
"""Least mean deviation as a share of the level, so that a very steady duration raises no alarm at a small difference.
"""
_LEAST_S = 0.00025
"""Least mean deviation in seconds, for the same purpose at short durations."""
_SUSPECTS = 8
"""Most samples kept since the test began to rise; the new level is estimated from them."""


@dataclass(frozen=True)
class Change:
    """The level was `before_s` and is `after_s` now, in seconds."""

    before_s: float
    after_s: float


class TrackedDuration:
    """A smoothed duration (RFC 6298) that follows a sudden change of level at once.

    Attributes:
        samples: number of samples taken in.
        smoothed_s: SRTT in seconds; 0 before the first sample.
        deviation_s: RTTVAR in seconds.
        changes: number of sudden changes so far.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.smoothed_s = 0.0
        self.deviation_s = 0.0
        self.changes = 0
        self._since_start = 0
        self._above = _Suspicion()
        self._below = _Suspicion()

    def add(self, seconds: float) -> Change | None:
        """Take in a sample; the change, if it settles that there was one."""
        self.samples += 1
        if self._since_start == 0:
            self._begin(seconds, seconds / 2)
            return None
        spread = max(self.deviation_s, _LEAST_SHARE * self.smoothed_s, _LEAST_S)
        off = (seconds - self.smoothed_s) / spread
        if self._above.add(off, seconds):
            return self._change_to(self._above)
        if self._below.add(-off, seconds):
            return self._change_to(self._below)
        self._fold(max(-_MOST_FOLDED, min(_MOST_FOLDED, off)) * spread)
        return None

    def _fold(self, off_s: float) -> None:
        """RFC 6298, section 2; the first samples are averaged, so that the first of all does not count for long."""
        self._since_start += 1
        early = 1 / self._since_start
        self.deviation_s += max(_DEVIATION_GAIN, early) * (abs(off_s) - self.deviation_s)
        self.smoothed_s += max(_SMOOTHED_GAIN, early) * off_s

    def _change_to(self, suspicion: _Suspicion) -> Change:
        before_s = self.smoothed_s
        level_s = statistics.median(suspicion.samples)
        self._begin(level_s, statistics.fmean(abs(sample - level_s) for sample in suspicion.samples))
        self.changes += 1
        return Change(before_s, level_s)

    def _begin(self, level_s: float, deviation_s: float) -> None:
        self.smoothed_s, self.deviation_s = level_s, deviation_s
        self._since_start = 1
        self._above, self._below = _Suspicion(), _Suspicion()


class _Suspicion:
    """One side of the test, and the samples since it began to rise."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=_SUSPECTS)
        self._sum = 0.0

    def add(self, off: float, sample: float) -> bool:
        """Whether it is certain now; `off` in mean deviations to this side."""
        self._sum = max(0.0, self._sum + min(off, _MOST_OFF) - _SLACK)
        if self._sum == 0.0:
            self.samples.clear()
        elif off > _SLACK:
            self.samples.append(sample)
        return self._sum > _ALARM
