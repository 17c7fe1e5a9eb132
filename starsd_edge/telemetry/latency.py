"""What the hub observes of a session's rounds, or of all of a target: each duration on one clock, never a difference
between two.

    return Z    from sending a DRAFT to receiving the session's next DRAFT_REQUEST, on the hub's clock
    link        Z less what the target says passed between the two at its end, on its clock: the network, both ways
    verify      the target's forward pass, as it reports it

A path that has become much slower than usual is *degraded*, until it recovers or the new time has become the usual one.

Each duration is smoothed as in RFC 6298 and followed at once where it changes. RFC 6298 alone needs a dozen samples to
get to a new level, and keeps a large variance for longer still. So beside it runs a two-sided CUSUM test (Page, 1954)
on how many mean deviations each sample lies off, cut to `_MOST_OFF` so that no single sample, however wild, is taken
for a change. When it says that the level has changed, the estimate begins anew from the samples since.
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


LONGEST_RETURN_S = 10.0
"""Longest return time in seconds. A longer one is a pause (somebody reads the answer), not a round."""
_DEGRADED_SHARE, _DEGRADED_S = 1.5, 0.005
"""A path is degraded above this multiple of its usual time plus these seconds."""
_RECOVERED_SHARE, _RECOVERED_S = 1.2, 0.0025
"""A degraded path has recovered below this multiple of its usual time plus these seconds. Both are smaller than those
of degrading, so that a path between the two does not change to and fro.
"""
_USUAL_GAIN = 1 / 32
"""Weight of the newest round in the usual time: about the last 32 rounds count."""
_USUAL_AFTER = 8
"""Rounds until the usual time of a path is known."""
_ACCEPTED_AFTER = 256
"""Rounds after which the time of a degraded path becomes its usual time."""


class PathHealth:
    """Whether a path is as fast as usual.

    Attributes:
        degraded: whether the path is much slower than usual.
        usual_s: the usual time in seconds; 0 while not known.
        now_s: the last smoothed time in seconds.
    """

    def __init__(self) -> None:
        self.degraded = False
        self.usual_s = 0.0
        self.now_s = 0.0
        self._rounds = 0
        self._rounds_degraded = 0

    @property
    def told(self) -> str:
        """The present and the usual time as text for people."""
        return f"{1e3 * self.now_s:.1f} ms, usually {1e3 * self.usual_s:.1f} ms"

    def add(self, smoothed_s: float) -> None:
        """Take in the smoothed time after another round, in seconds."""
        self.now_s = smoothed_s
        self._rounds += 1
        if self._rounds <= _USUAL_AFTER:
            self.usual_s = smoothed_s
        elif not self.degraded:
            self.degraded = smoothed_s > _DEGRADED_SHARE * self.usual_s + _DEGRADED_S
            if not self.degraded:
                self.usual_s += _USUAL_GAIN * (smoothed_s - self.usual_s)
        elif smoothed_s < _RECOVERED_SHARE * self.usual_s + _RECOVERED_S:
            self.degraded, self._rounds_degraded = False, 0
        else:
            self._rounds_degraded += 1
            if self._rounds_degraded == _ACCEPTED_AFTER:
                self.degraded, self._rounds_degraded, self.usual_s = False, 0, smoothed_s


class Latency:
    """The durations of one session or one target.

    Attributes:
        returns: Z, from sending a draft to receiving the next request.
        link: time on the network both ways, of targets that tell what passed at their end.
        verify: the target's forward pass, of targets that report it.
        path: health of the path, judged by the link, or by Z where the target does not tell.
    """

    def __init__(self) -> None:
        self.returns = TrackedDuration()
        self.link = TrackedDuration()
        self.verify = TrackedDuration()
        self.path = PathHealth()
        self._reported: tuple[int, int] | None = None

    def returned(self, return_s: float, target_s: float) -> None:
        """Take in a round.

        Args:
            return_s: Z in seconds.
            target_s: seconds that passed at the target's end; 0 where it does not tell.
        """
        if not 0 <= return_s <= LONGEST_RETURN_S:
            return
        self.returns.add(return_s)
        if target_s > 0:
            self.link.add(max(0.0, return_s - target_s))
        self.path.add(self.link.smoothed_s if self.link.samples else self.returns.smoothed_s)

    def reported(self, rounds: int, verify_us: int) -> None:
        """Take in a target's sums since it began: rounds, and microseconds of their forward passes."""
        before, self._reported = self._reported, (rounds, verify_us)
        if before is None or rounds <= before[0] or verify_us < before[1]:
            return
        self.verify.add(min(LONGEST_RETURN_S, (verify_us - before[1]) / (rounds - before[0]) / 1e6))
