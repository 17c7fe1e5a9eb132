"""What the hub observes of a session's rounds, or of all of a target: each duration on one clock, never a difference
between two.

    return Z    from sending a DRAFT to receiving the session's next DRAFT_REQUEST, on the hub's clock
    link        Z less what the target says passed between the two at its end, on its clock: the network, both ways
    verify      the target's forward pass, as it reports it

A path that has become much slower than usual is *degraded*, until it recovers or the new time has become the usual one.
"""

from __future__ import annotations

from starsd_edge.telemetry.durations import TrackedDuration

LONGEST_RETURN_S = 10.0
"""A longer one is a pause (somebody reads the answer), not a round."""
_DEGRADED_SHARE, _DEGRADED_S = 1.5, 0.005
_RECOVERED_SHARE, _RECOVERED_S = 1.2, 0.0025
"""Over the usual time: degraded above the first two, as usual again below the last two."""
_USUAL_GAIN = 1 / 32
_USUAL_AFTER = 8
"""Rounds until it is known what is usual."""
_ACCEPTED_AFTER = 256
"""Rounds until a degraded path is what is usual."""


class PathHealth:
    """Whether a path is as fast as usual.

    Attributes:
        degraded: it is not.
        usual_s: what is usual, in seconds; 0 while not known.
        now_s: what it was last.
    """

    def __init__(self) -> None:
        self.degraded = False
        self.usual_s = 0.0
        self.now_s = 0.0
        self._rounds = 0
        self._rounds_degraded = 0

    @property
    def told(self) -> str:
        """For people."""
        return f"{1e3 * self.now_s:.1f} ms, usually {1e3 * self.usual_s:.1f} ms"

    def add(self, smoothed_s: float) -> None:
        """The estimate after another round."""
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
        returns: Z.
        link: of targets that tell what passed at their end.
        verify: of targets that report.
        path: judged by the link, or by Z where the target does not tell.
    """

    def __init__(self) -> None:
        self.returns = TrackedDuration()
        self.link = TrackedDuration()
        self.verify = TrackedDuration()
        self.path = PathHealth()
        self._reported: tuple[int, int] | None = None

    def returned(self, return_s: float, target_s: float) -> None:
        """A round.

        Args:
            return_s: Z.
            target_s: what passed at the target's end; 0 where it does not tell.
        """
        if not 0 <= return_s <= LONGEST_RETURN_S:
            return
        self.returns.add(return_s)
        if target_s > 0:
            self.link.add(max(0.0, return_s - target_s))
        self.path.add(self.link.smoothed_s if self.link.samples else self.returns.smoothed_s)

    def reported(self, rounds: int, verify_us: int) -> None:
        """Sums of a target since it began: rounds, and the time of their forward passes."""
        before, self._reported = self._reported, (rounds, verify_us)
        if before is None or rounds <= before[0] or verify_us < before[1]:
            return
        self.verify.add(min(LONGEST_RETURN_S, (verify_us - before[1]) / (rounds - before[0]) / 1e6))
