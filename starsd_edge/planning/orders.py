"""Orders in which a simulated hub serves what waits: those of a real one, as far as a simulation needs them.

The numbers that both go by stand here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

FIFO = "fifo"
LATENCY = "latency"
SRF = "srf"
DRR = "drr"
ORDERS = (FIFO, LATENCY, SRF, DRR)

AGING = 4.0
"""Seconds of return time that one second in the queue is worth to `latency` and `srf`."""
CREDIT = 2.0
"""Quanta that a target can save up, and owe."""
MOST_UNEVEN = 2.0
"""A request may make a batch at most so many times as long as the most urgent one needs: its target waits for that."""
CROWDED = 2.0
"""Requests that stay behind when a batch is taken, on average, above which a hub does not keep up: whatever the order,
somebody waits for more than one pass.
"""
RELAXED = 0.5
"""Below this it keeps up again. Between the two nothing changes."""
CROWD_GAIN = 1 / 32
"""Of that average, the weight of the newest batch."""
_ENOUGH = 1 - 1e-9
"""Sums of floats miss whole costs by their last bits."""


@dataclass(frozen=True)
class Waiting:
    """A request that waits.

    Attributes:
        target: its number.
        arrived: when, in seconds.
        return_s: the target's expected return time Z.
        draft_s: the predicted cost of its draft.
    """

    target: int
    arrived: float
    return_s: float
    draft_s: float


class Order(Protocol):
    """Who is next."""

    def choose(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """One of `waiting`, of which there is at least one, in order of arrival."""

    def charge(self, targets: Sequence[int], draft_s: float, left: int) -> None:
        """A pass for these targets took so long, while so many others waited from its beginning on."""


class Fifo:
    """First come, first served."""

    def choose(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """See `Order`."""
        return waiting[0]

    def charge(self, targets: Sequence[int], draft_s: float, left: int) -> None:
        """See `Order`."""


@dataclass(frozen=True)
class ByReturn:
    """The longest expected return first, so that what takes long begins early; waiting makes up for a short one.

    Attributes:
        aging: seconds of return that a second of waiting is worth; 0 lets short ones starve.
        shortest: the other way round, which fills the queue soonest and lets long ones starve.
    """

    aging: float = AGING
    shortest: bool = False

    def choose(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """See `Order`."""
        sign = -1 if self.shortest else 1
        return max(waiting, key=lambda request: sign * request.return_s + self.aging * (now - request.arrived))

    def charge(self, targets: Sequence[int], draft_s: float, left: int) -> None:
        """See `Order`."""


@dataclass
class DeficitRoundRobin:
    """Equal drafter time for each, by weight: of those with enough credit for their draft, the one with most for its
    weight is served; when nobody has enough, everybody is given a quantum, those who are away too.

    Attributes:
        weights: by target.
        quantum_s: drafter time of one turn.
    """

    weights: Mapping[int, float]
    quantum_s: float
    _credit_s: dict[int, float] = field(default_factory=dict)

    def choose(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """See `Order`."""
        while True:
            payers = [request for request in waiting if self._credit(request.target) >= _ENOUGH * request.draft_s]
            if payers:
                return max(payers, key=lambda request: self._credit(request.target) / self.weights[request.target])
            self._grant(max(request.draft_s for request in waiting))

    def _credit(self, target: int) -> float:
        return self._credit_s.get(target, 0.0)

    def _grant(self, dearest_s: float) -> None:
        for target, weight in self.weights.items():
            turn_s = self.quantum_s * weight
            self._credit_s[target] = min(self._credit(target) + turn_s, max(CREDIT * turn_s, dearest_s))

    def charge(self, targets: Sequence[int], draft_s: float, left: int) -> None:
        """See `Order`."""
        for target in targets:
            self._credit_s[target] = self._credit(target) - draft_s / len(targets)


@dataclass
class LoadAdaptive:
    """The longest return first while the hub keeps up, equal shares of it while it does not.

    Attributes:
        calm: the order of a hub that keeps up.
        crowded: that of one that does not.
    """

    calm: Order
    crowded: Order
    _left: float = 0.0
    _is_crowded: bool = False

    def choose(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """See `Order`."""
        return (self.crowded if self._is_crowded else self.calm).choose(waiting, now)

    def charge(self, targets: Sequence[int], draft_s: float, left: int) -> None:
        """See `Order`."""
        self.crowded.charge(targets, draft_s, left)
        self._left += CROWD_GAIN * (left - self._left)
        if self._left > CROWDED:
            self._is_crowded = True
        elif self._left < RELAXED:
            self._is_crowded = False


def order_named(name: str, weights: Mapping[int, float], quantum_s: float) -> Order:
    """One of `ORDERS`, new.

    Raises:
        ValueError: there is no such order.
    """
    if name == FIFO:
        return Fifo()
    if name == LATENCY:
        return LoadAdaptive(ByReturn(), DeficitRoundRobin(weights, quantum_s))
    if name == SRF:
        return ByReturn(shortest=True)
    if name == DRR:
        return DeficitRoundRobin(weights, quantum_s)
    raise ValueError(f"no order {name!r}: one of {', '.join(ORDERS)}")
