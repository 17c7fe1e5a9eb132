"""Times of a modelled device and a modelled link, and a pacer that keeps to them on a real clock.

Figures that rest on these are those of a `TIMING_BACKEND`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starsd_edge.errors import UsageError


@dataclass(frozen=True)
class ModelPassTimes:
    """Seconds of one pass by its size T: base (1 + growth (T - 1)), with a random deviation drawn anew each time.

    Attributes:
        base_s: seconds of a pass over one row (a verify pass), or for one session (a drafter's pass).
        growth: time that each further row or session adds, as a share of `base_s`.
        jitter: largest deviation as a share of the whole, evenly distributed.

    Raises:
        UsageError: a number that is no duration or share.
    """

    base_s: float
    growth: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.base_s < float("inf") and 0 <= self.growth < float("inf") and 0 <= self.jitter < 1):
            raise UsageError(f"a pass cannot take {self.base_s} s with a growth of {self.growth}, jitter {self.jitter}")

    def mean_s(self, size: int) -> float:
        """Seconds of a pass of this size (rows or sessions), without jitter."""
        return self.base_s * (1 + self.growth * (size - 1))

    def draw_s(self, size: int, uniform: float) -> float:
        """Seconds of one pass with jitter; `uniform` in [0, 1) decides the deviation."""
        return self.mean_s(size) * (1 + self.jitter * (2 * uniform - 1))


@dataclass(frozen=True)
class ModelDraftTimes:
    """Least seconds of one pass of a modelled drafter: one_s (1 + growth (b - 1)) for b drafts of the usual depth.

    A drafter of one layer is bound by its kernel launches: a further draft in the same pass costs little, a further
    level costs a step.

    Attributes:
        one_s: seconds of a pass for one session.
        growth: time that each further session adds, as a share of `one_s`.
        levels: depth of the draft that takes this long; a pass of d levels takes (1 + d) / (1 + levels) of it. With 0 a
            pass takes the same time at any depth.
    """

    one_s: float
    growth: float = 0.0
    levels: int = 0

    def pass_s(self, depths: Sequence[int]) -> float:
        """Seconds of a pass that drafts trees of these depths together."""
        by_depth = (1 + max(depths, default=0)) / (1 + self.levels) if self.levels else 1.0
        return self.one_s * by_depth * (1 + self.growth * max(0, len(depths) - 1))


@dataclass(frozen=True)
class LinkTimes:
    """A network path.

    Attributes:
        rtt_s: seconds of an empty packet there and back, half of it each way.
        bits_per_s: rate of each direction; None has no limit.

    Raises:
        UsageError: a number that is no duration or rate.
    """

    rtt_s: float
    bits_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_s < float("inf"):
            raise UsageError(f"a round trip cannot take {self.rtt_s} s")
        if self.bits_per_s is not None and not 0 < self.bits_per_s < float("inf"):
            raise UsageError(f"a link cannot carry {self.bits_per_s} bits/s")

    @property
    def is_instant(self) -> bool:
        """Whether it delays nothing."""
        return self.rtt_s == 0 and self.bits_per_s is None


class Line:
    """One direction of a path: when each chunk of bytes comes out at the other end, in order."""

    def __init__(self, link: LinkTimes) -> None:
        self._delay_s = link.rtt_s / 2
        self._bits_per_s = link.bits_per_s
        self._free_at = 0.0

    def arrival_s(self, now: float, size: int) -> float:
        """When `size` bytes given to the line at `now` have come out: after what is on it already."""
        begins = max(now, self._free_at)
        self._free_at = begins + (8 * size / self._bits_per_s if self._bits_per_s else 0.0)
        return self._free_at + self._delay_s


class Pacer:
    """Makes each pass take its modelled time.

    A pass ends at its beginning plus its duration, whatever was computed in between. Where a sleep takes too long (the
    system's timer, a busy machine), the excess is subtracted from the next pass, so that it does not add up.

    Args:
        clock: monotonic seconds.
        sleep: waits for this number of seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._overslept_s = 0.0

    def begin(self) -> float:
        """Begin a pass: the time at which it begins, to be passed to `end`."""
        return self._clock()

    def end(self, began: float, duration_s: float) -> None:
        """Wait until the pass that began at `began` has taken `duration_s`."""
        deadline = began + max(0.0, duration_s - self._overslept_s)
        owed = self._overslept_s - min(self._overslept_s, duration_s)
        left = deadline - self._clock()
        if left > 0:
            self._sleep(left)
        self._overslept_s = min(owed + max(0.0, self._clock() - deadline), duration_s)
