"""The default: longest return first while the hub keeps up, equal shares of the drafter when it does not."""

from __future__ import annotations

from collections.abc import Sequence

from starsd_edge.planning.orders import CROWD_GAIN, CROWDED, RELAXED
from starsd_server.scheduling.contract import Waiting
from starsd_server.scheduling.deficits import DeficitRoundRobin
from starsd_server.scheduling.stateless import LongestReturn


class LoadAdaptive:
    """See the module."""

    def __init__(self) -> None:
        self._longest_return = LongestReturn()
        self._shares = DeficitRoundRobin()
        self._left_behind = 0.0
        self._saturated = False

    @property
    def name(self) -> str:
        """See `Policy`."""
        return self._shares.name if self._saturated else self._longest_return.name

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        rule = self._shares if self._saturated else self._longest_return
        return rule.ranks(ready, now)

    def arrived(self, waiting: Waiting) -> None:
        """See `Policy`."""
        self._shares.arrived(waiting)

    def taken(self, batch: Sequence[Waiting], left: int) -> None:
        """See `Policy`."""
        self._shares.taken(batch, left)
        self._left_behind += CROWD_GAIN * (left - self._left_behind)
        if not self._saturated and self._left_behind > CROWDED:
            self._saturated = True
            self._shares.begin_anew()
        elif self._saturated and self._left_behind < RELAXED:
            self._saturated = False

    def spent(self, session: int, seconds: float) -> None:
        """See `Policy`."""
        self._shares.spent(session, seconds)

    def forget(self, session: int) -> None:
        """See `Policy`."""
        self._shares.forget(session)
