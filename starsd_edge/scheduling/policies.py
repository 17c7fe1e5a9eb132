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
"""First come, first served."""
LATENCY = "latency"
"""Longest return first while the hub keeps up, else deficit round robin."""
SRF = "srf"
"""Shortest return first."""
DRR = "drr"
"""Deficit round robin over drafter time."""

AGING = 4.0
"""Seconds of return time that one second in the queue counts for, in the policies `latency` and `srf`."""
CREDIT = 2.0
"""Most quanta of drafter time that a session can save up, and most that it can owe, in the policy `drr`."""
CROWDED = 2.0
"""Mean number of requests left behind when a batch is taken, above which the hub counts as saturated: whatever the
order, some target then waits for more than one pass.
"""
RELAXED = 0.5
"""Mean number of requests left behind below which a saturated hub counts as keeping up again. Between `RELAXED` and
`CROWDED` the state stays as it is, so that it does not change to and fro.
"""
CROWD_GAIN = 1 / 32
"""Weight of the newest batch in the mean number of requests left behind: about the last 32 batches count."""
MOST_RETURN_S = 1.0
"""Seconds that a return time counts as at most: a target that returns slowly must not get an unbounded advantage."""


@dataclass(frozen=True)
class KeyTerms:
    """What the holder of a key gets of the drafter.

    Attributes:
        weight: share of drafter time of its sessions, relative to sessions of weight 1.
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
        terms: terms of the key that its session belongs to.
    """

    request: QueueDraft
    drafter: str
    arrived: float
    returns_s: float
    cost_s: float
    terms: KeyTerms

    @property
    def session(self) -> int:
        """The session that the request belongs to."""
        return self.request.session


class Policy(Protocol):
    """An order of waiting requests, with what it has to remember for it."""

    @property
    def name(self) -> str:
        """Name of the rule that is followed now."""

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """A rank for each of these requests, which come in the order of their arrival. Lower ranks are served first,
        and of equal ranks the first. Changes nothing. Ranks all at once, because the drafter waits for it.
        """

    def arrived(self, waiting: Waiting) -> None:
        """A request begins to wait, or takes the place of its session's earlier request."""

    def taken(self, batch: Sequence[Waiting], left: int) -> None:
        """These requests are drafted now, the most urgent first; `left` requests stay behind."""

    def spent(self, session: int, seconds: float) -> None:
        """The drafter was busy for this many seconds with a taken request of this session."""

    def forget(self, session: int) -> None:
        """The session is gone."""


class _Stateless:
    """The part of `Policy` that policies without memory share: by arrival, by longest and by shortest return."""

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
    """The part that both rules by return time share: time in the queue improves a request's place.

    Args:
        aging: seconds of return time that one second in the queue is worth; 0 lets the last ones starve.
    """

    def __init__(self, aging: float = AGING) -> None:
        self._aging = aging

    def _credit_s(self, waiting: Waiting, now: float) -> float:
        return self._aging * waiting.terms.weight * (now - waiting.arrived)


class LongestReturn(_Aging):
    """Longest return first: the last of a group to come back then comes back soonest (Jackson's rule for tails). Aging
    bounds how long targets with a short return wait for those with a long one.
    """

    name = LATENCY

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [-waiting.returns_s - self._credit_s(waiting, now) for waiting in ready]


class ShortestReturn(_Aging):
    """Shortest return first: that refills the queue soonest. Aging keeps targets with a long return from starving."""

    name = SRF

    def ranks(self, ready: Sequence[Waiting], now: float) -> list[float]:
        """See `Policy`."""
        return [waiting.returns_s - self._credit_s(waiting, now) for waiting in ready]


_FIRST_QUANTUM_S = 0.01
"""Seconds of the quantum before any pass was timed; then it follows the mean cost of a request."""
_QUANTUM_GAIN = 1 / 16
"""Weight of the newest request in the mean cost that is the quantum: about the last 16 count."""
_ROUNDING = 1e-9
"""Rounds by which a session may fall short of its cost and still be served: sums of floats miss a whole cost by their
last bits.
"""


@dataclass
class _Account:
    """The drafter time that a session has saved up, and the time granted per weight (`at`) when that was computed."""

    saved_s: float
    at: float
    weight: float
    cost_s: float = 0.0
    charged_s: float = 0.0


class DeficitRoundRobin:
    """Deficit round robin over drafter time (Shreedhar and Varghese, 1996), for sessions with one request at a time.

    Each round gives each session a quantum times its weight. The quantum is the mean cost of a request. A request is
    served once its session has saved up its cost. A session keeps what it does not use, up to `CREDIT` quanta, also
    while its target verifies: so a session with a long return gets its share all the same. The time that was really
    spent is settled when it is known.

    A round ends as soon as no waiting session has saved up its cost, however many rounds that takes. So no request is
    ever held back.
    """

    name = DRR

    def __init__(self) -> None:
        self._quantum_s = _FIRST_QUANTUM_S
        self._granted_s = 0.0
        """Seconds of drafter time granted so far to a session of weight 1."""
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
        """Seconds that a session has saved up now. It may save up the whole cost of its waiting request, however high
        that is; the cap of `CREDIT` quanta limits only what goes beyond it.
        """
        most = max(CREDIT * self._quantum_s * account.weight, account.cost_s)
        return min(most, account.saved_s + (self._granted_s - account.at) * account.weight)


class LoadAdaptive:
    """The default policy: longest return first while the hub keeps up, equal shares of the drafter while it is
    saturated.

    The mean number of requests left behind by batches decides: see `CROWDED` and `RELAXED`.
    """

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
