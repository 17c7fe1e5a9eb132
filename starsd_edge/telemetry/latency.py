"""What the hub observes of a session's rounds, or of all of a target: each duration on one clock, never a difference
between two.

    return Z    from sending a DRAFT to receiving the session's next DRAFT_REQUEST, on the hub's clock
    link        Z less what the target says passed between the two at its end, on its clock: the network, both ways
    verify      the target's forward pass, as it reports it

A path that has become much slower than usual is *degraded*, until it recovers or the new time has become the usual one.
"""

from __future__ import annotations

from starsd_edge.telemetry.rtt import TrackedDuration

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
