"""When to try the hub again: full jitter under a ceiling that doubles, back to the least only after good service.

A hub that accepts and hangs up at once has not served, so it is not hammered; after a long good connection the first
try comes within 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable

LEAST_CEILING_S = 0.2
MOST_CEILING_S = 5.0
MOST_ASKED_S = 60.0
"""A hub may ask to be left alone for so long and no longer: one message must not end the search for it."""
GOOD_SERVICE_S = 10.0
"""A connection that stood this long counts as good service."""


class Backoff:
    """Delays between attempts.

    Args:
        uniform: a random number in [0, 1).
    """

    def __init__(self, uniform: Callable[[], float]) -> None:
        self._uniform = uniform
        self._ceiling_s = LEAST_CEILING_S

    def served(self, seconds: float) -> None:
        """The hub served for this long before the connection ended."""
        if seconds >= GOOD_SERVICE_S:
            self._ceiling_s = LEAST_CEILING_S

    def next_delay_s(self, at_least_s: float = 0.0) -> float:
        """Seconds until the next attempt; no less than the hub asked for, up to `MOST_ASKED_S`."""
        delay = self._uniform() * self._ceiling_s
        self._ceiling_s = min(2 * self._ceiling_s, MOST_CEILING_S)
        return min(at_least_s, MOST_ASKED_S) + delay
