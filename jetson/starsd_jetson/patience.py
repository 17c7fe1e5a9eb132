"""How long a round may wait for the hub's draft before it goes on without.

A wait is a bet: a tree of depth d can save at most d of the target's own rounds. So the wait is bounded by what drafts
took so far, by a multiple of what the tree could save, and by a fixed cap; a hub that is slower than that on average is
not waited for at all, and its late trees are rebased. Requests that are never answered halve the next wait and double
the time until the next request: a dead hub costs less than two waits, however long the answer.
"""

from __future__ import annotations

from starsd_edge.telemetry.rtt import RttEstimator

FIRST_WAIT_S = 0.25
"""Before any draft was timed: a prompt's rows are on their way and the hub's own prefill runs."""
LEAST_WAIT_S = 0.02
"""Thread switches on a busy machine alone take this long at times."""
MOST_WAIT_S = 1.0
"""A reader sees a pause longer than this as a stall."""
WORTH = 4
"""Wait up to this many times what the best tree saves: where hub and targets share cores, all of them slow down
together.
"""
LEAST_WORTH_S = 0.05
"""Shorter waits than this disturb nobody, however fast the target is."""
FIRST_RETRY = 8
MOST_RETRY = 64
"""Requests not waited for until one is again; from the first to the most as retries fail."""
FIRST_SILENCE_S = 1.0
MOST_SILENCE_S = 30.0
"""A request unanswered for this long is given up and another one sent; from the first to the most as they add up."""


class Patience:
    """Learns from every draft, in time or late.

    Args:
        fixed_wait_s: wait up to this many seconds for every draft instead, whether it pays or not; only a silent hub is
            still given less and less.
    """

    def __init__(self, fixed_wait_s: float | None = None) -> None:
        self._fixed_wait_s = fixed_wait_s
        self.round_trips = RttEstimator()
        self._own_round_s = 0.0
        self._unanswered = 0
        self._not_waited = 0
        self._retry_after = FIRST_RETRY
        self._retrying_s: float | None = None

    def answered(self, round_trip_s: float) -> None:
        """A draft came, this long after it was asked for."""
        if self._retrying_s is not None:
            self._judge_retry(round_trip_s <= self._retrying_s)
        self.round_trips.add(round_trip_s)
        self._unanswered = 0

    def given_up(self) -> None:
        """A request got no answer at all."""
        self._unanswered += 1

    @property
    def is_unanswered(self) -> bool:
        """Whether a request was given up since the last draft came."""
        return self._unanswered > 0

    def own_round(self, seconds: float) -> None:
        """The target's own share of a round took this long: verify, commit, print."""
        gain = 1 / 8 if self._own_round_s else 1.0
        self._own_round_s += gain * (seconds - self._own_round_s)

    def wait_s(self, depth: int) -> float:
        """Seconds to wait for a tree of this depth, from the request on."""
        if self._fixed_wait_s is not None:
            return float(self._fixed_wait_s / 2**self._unanswered)
        bound = MOST_WAIT_S
        if self._own_round_s:
            bound = min(bound, max(LEAST_WORTH_S, WORTH * depth * self._own_round_s))
        if self.round_trips.samples == 0:
            wait = FIRST_WAIT_S
        elif self.round_trips.smoothed_s > bound:
            wait = self._retry_wait_s(bound)
        else:
            wait = max(LEAST_WAIT_S, self.round_trips.upper_s)
        return float(min(wait, bound) / 2**self._unanswered)

    def _retry_wait_s(self, bound: float) -> float:
        """Nothing, but once in a while the whole bound."""
        self._not_waited += 1
        if self._not_waited <= self._retry_after:
            return 0.0
        self._not_waited = 0
        self._retrying_s = bound
        return bound

    def _judge_retry(self, in_time: bool) -> None:
        """A hub that answers in time when it is waited for is judged anew, without what it took before."""
        self._retrying_s = None
        if in_time:
            self.round_trips = RttEstimator()
        self._retry_after = FIRST_RETRY if in_time else min(2 * self._retry_after, MOST_RETRY)

    @property
    def silence_s(self) -> float:
        """Seconds after which an unanswered request is given up."""
        usual = max(FIRST_SILENCE_S, 2 * self.round_trips.upper_s, self._fixed_wait_s or 0.0)
        return float(min(usual * 2**self._unanswered, MOST_SILENCE_S))
