"""The policies that remember nothing: by arrival, by longest and by shortest return."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.planning.orders import AGING, FIFO, LATENCY, SRF
from starsd_server.scheduling.contract import Waiting


class _Stateless:
    """The part of `Policy` that has nothing to remember."""

    def arrived(self, waiting: Waiting) -> None:
        """See `Policy`."""

    def taken(self, batch: Sequence[Waiting], left: int) -> None:
        """See `Policy`."""

    def spent(self, session: int, seconds: float) -> None:
        """See `Policy`."""

    def forget(self, session: int) -> None:
        """See `Policy`."""


class Fifo(_Stateless):
    """First come, first served."""

    name = FIFO

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [waiting.arrived for waiting in ready]


class LongestReturn(_Stateless):
    """Whose return takes longest goes first: the last of a group to come back comes back soonest that way (Jackson's
    rule for tails). Aging bounds what the near ones wait for the far ones.
    """

    name = LATENCY

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [-waiting.returns_s - AGING * waiting.terms.weight * (now - waiting.arrived) for waiting in ready]


class ShortestReturn(_Stateless):
    """Whose return takes least goes first: that refills the queue soonest. Aging keeps the far ones from starving."""

    name = SRF

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [waiting.returns_s - AGING * waiting.terms.weight * (now - waiting.arrived) for waiting in ready]
