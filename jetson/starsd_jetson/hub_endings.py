"""Why a connection to the hub ended or never stood, in words for the user, and when to try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starsd_edge.errors import StarsdError
from starsd_edge.protocol.messages import DEFAULT_PORT
from starsd_edge.telemetry.hub_opening import LOOPBACK_ONLY, MISDIRECTED, NOT_LET_IN, NotOpenedError, token_remedy
from starsd_jetson.hub_address import HubAddress


class HubError(StarsdError):
    """The hub cannot be reached or refuses this target."""


@dataclass(frozen=True)
class Ending:
    """The end of one attempt.

    Attributes:
        reason: for the user.
        is_lasting: the hub refuses, which somebody has to change; it is asked again now and then.
        retry_after_s: the hub asked to be left alone for this long.
    """

    reason: str
    is_lasting: bool = False
    retry_after_s: float = 0.0


def unreachable(address: HubAddress, why: str) -> str:
    """The line for a hub that is not there."""
    if address.ticket is not None:
        return (
            f"the hub sent this target on to {address.url}, which cannot be reached ({why}): "
            "let targets through to all of its --port-range"
        )
    port = "" if address.names_port else f"; the address named no port, so {DEFAULT_PORT} was meant"
    return f"the hub {address.url} cannot be reached ({why}{port})"


def not_opened(address: HubAddress, error: NotOpenedError) -> Ending:
    """No WebSocket came about: a wrong token is likely to stay wrong, all else may pass. At a port of the target's own
    all may pass, since the main port knew the token.
    """
    if address.ticket is not None and error.status is not None:
        reason = f"the hub sent this target on to {address.url} and did not let it in there (HTTP {error.status})"
        return Ending(reason)
    if error.status == MISDIRECTED:
        return Ending(unreachable(address, LOOPBACK_ONLY))
    if error.status in NOT_LET_IN:
        remedy = token_remedy(address.token is not None)
        reason = f"the hub {address.url} does not let this target in (HTTP {error.status}): {remedy}"
        return Ending(reason, is_lasting=True)
    return Ending(unreachable(address, str(error)))


LEAST_CEILING_S = 0.2
"""Longest delay before the first new attempt, in seconds: after a long good connection the hub is tried again soon."""
MOST_CEILING_S = 5.0
"""Longest delay before any attempt, in seconds; the ceiling doubles up to it as attempts fail."""
MOST_ASKED_S = 60.0
"""Longest delay in seconds that a hub may ask for: one message must not end the attempts to reach it."""
GOOD_SERVICE_S = 10.0
"""Seconds after which a connection counts as good service, and the ceiling of the delays returns to its least."""


class Backoff:
    """Delays between attempts to connect: full jitter under a ceiling that doubles, back to the least after good
    service.

    A hub that accepts a connection and ends it at once has not served, so it is not tried in quick succession. After a
    long good connection the first attempt comes within `LEAST_CEILING_S`.

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
