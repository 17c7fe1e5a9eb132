"""What a policy is told of the requests that wait, and what it says.

A policy ranks; it never holds a request back, so whichever it is, the drafter works while anything waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starsd_edge.protocol.hub_side import QueueDraft

MOST_RETURN_S = 1.0
"""Return times count as this much at most: a target that takes its time must not buy an unbounded start by it."""


@dataclass(frozen=True)
class KeyTerms:
    """What the holder of a key gets of the drafter.

    Attributes:
        weight: its sessions' share beside those of weight 1.
        priority: its class: those of a higher class go first, until lower ones have waited for long.
    """

    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True)
class Waiting:
    """A request in the queue.

    Attributes:
        request: the newest of its session.
        drafter: which of the hub's drafters serves it.
        arrived: when its session began to wait, in seconds on the hub's clock; a request that superseded another waits
            since that one came.
        returns_s: expected time from its draft to the session's next request; at most `MOST_RETURN_S`.
        cost_s: expected time of a pass for it alone.
        terms: those of its key.
    """

    request: QueueDraft
    drafter: str
    arrived: float
    returns_s: float
    cost_s: float
    terms: KeyTerms

    @property
    def session(self) -> int:
        """Whose it is."""
        return self.request.session


class Policy(Protocol):
    """An order of waiting requests, with what it has to remember for it."""

    @property
    def name(self) -> str:
        """The rule that is followed now."""

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """One for each of these, which come in the order of their arrival: those of lower rank are served first, of
        equals the first. Changes nothing. For all at once, because the drafter waits for it.
        """

    def arrived(self, waiting: Waiting) -> None:
        """It begins to wait, or takes the place of its session's earlier request."""

    def taken(self, batch: Sequence[Waiting], left: int) -> None:
        """These are drafted now, the most urgent first; so many requests stay behind."""

    def spent(self, session: int, seconds: float) -> None:
        """The drafter was busy for a taken request for so long."""

    def forget(self, session: int) -> None:
        """The session is gone."""
