"""The order of a hub's queue: what a policy is told of the requests that wait, and the policies there are.

A policy ranks; it never holds a request back, so whichever it is, the drafter works while anything waits. The hub and
the simulator run the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starsd_edge.protocol.hub_side import QueueDraft

FIFO = "fifo"
LATENCY = "latency"
SRF = "srf"
DRR = "drr"

AGING = 4.0
"""Seconds of return time that one second in the queue is worth to `latency` and `srf`."""
CREDIT = 2.0
"""Quanta of drafter time that a session can save up, and owe, with `drr`."""
CROWDED = 2.0
"""Requests that stay behind when a batch is taken, on average, above which the hub is saturated: whatever the order,
somebody waits for more than one pass.
"""
RELAXED = 0.5
"""Below this average the hub keeps up again. Between the two nothing changes."""
CROWD_GAIN = 1 / 32
"""Weight of the newest batch in that average."""
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


class _Aging(_Stateless):
    """A rule by return time in which waiting makes up for a bad place.

    Args:
        aging: seconds of return time that one second in the queue is worth; 0 lets the last ones starve.
    """

    def __init__(self, aging: float = AGING) -> None:
        self._aging = aging

    def _credit_s(self, waiting: Waiting, now: float) -> float:
        return self._aging * waiting.terms.weight * (now - waiting.arrived)


class LongestReturn(_Aging):
    """Whose return takes longest goes first: the last of a group to come back comes back soonest that way (Jackson's
    rule for tails). Aging bounds what the near ones wait for the far ones.
    """

    name = LATENCY

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [-waiting.returns_s - self._credit_s(waiting, now) for waiting in ready]


class ShortestReturn(_Aging):
    """Whose return takes least goes first: that refills the queue soonest. Aging keeps the far ones from starving."""

    name = SRF

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [waiting.returns_s - self._credit_s(waiting, now) for waiting in ready]


_FIRST_QUANTUM_S = 0.01
_QUANTUM_GAIN = 1 / 16
_ROUNDING = 1e-9
"""Rounds: sums of floats miss whole costs by their last bits."""


@dataclass
class _Account:
    """What a session has saved up at a moment of the rounds."""

    saved_s: float
    at: float
    weight: float
    cost_s: float = 0.0
    charged_s: float = 0.0


class DeficitRoundRobin:
    """See the module. The quantum is what a request costs on average."""

    name = DRR

    def __init__(self) -> None:
        self._quantum_s = _FIRST_QUANTUM_S
        self._granted_s = 0.0
        """Quanta given so far to a session of weight 1."""
        self._accounts: dict[int, _Account] = {}

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`: rounds until it can be served. Of those that can pay now, the one that has saved most for its
        weight goes first: by arrival alone, a session of great weight with a long return would miss its second turn.
        """
        accounts, granted_s, quantum_s = self._accounts, self._granted_s, self._quantum_s
        ranks: list[float] = []
        for waiting in ready:
            account = accounts[waiting.request.session]
            saved = account.saved_s / account.weight + granted_s - account.at
            rounds = math.ceil((waiting.cost_s / account.weight - saved) / quantum_s - _ROUNDING)
            ranks.append(rounds if rounds > 0 else -saved)
        return ranks

    def arrived(self, waiting: Waiting) -> None:
        """See `Policy`."""
        account = self._accounts.get(waiting.session)
        if account is None:
            account = self._accounts[waiting.session] = _Account(0.0, self._granted_s, waiting.terms.weight)
        account.saved_s, account.at = self._saved(account), self._granted_s
        account.cost_s = waiting.cost_s

    def taken(self, batch: Sequence[Waiting], left: int) -> None:
        """See `Policy`. Those that go along with the first are served on credit."""
        self._granted_s += self._quantum_s * max(0.0, self.ranks(batch[:1], 0.0)[0])
        for waiting in batch:
            account = self._accounts[waiting.session]
            account.saved_s, account.at = self._saved(account) - waiting.cost_s, self._granted_s
            account.charged_s, account.cost_s = waiting.cost_s, 0.0

    def spent(self, session: int, seconds: float) -> None:
        """See `Policy`."""
        self._quantum_s += _QUANTUM_GAIN * (seconds - self._quantum_s)
        account = self._accounts.get(session)
        if account is not None:
            debt = -CREDIT * self._quantum_s * account.weight
            account.saved_s = max(debt, account.saved_s + account.charged_s - seconds)
            account.charged_s = 0.0

    def forget(self, session: int) -> None:
        """See `Policy`."""
        self._accounts.pop(session, None)

    def begin_anew(self) -> None:
        """All sessions have saved nothing."""
        for account in self._accounts.values():
            account.saved_s, account.at = 0.0, self._granted_s

    def _saved(self, account: _Account) -> float:
        """What a session waits for it may save up, however dear it is: the cap holds for the rest only, so it is of no
        account for what is missing.
        """
        most = max(CREDIT * self._quantum_s * account.weight, account.cost_s)
        return min(most, account.saved_s + (self._granted_s - account.at) * account.weight)


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
