"""Deficit round robin over drafter time (Shreedhar and Varghese, 1996), for sessions with one request at a time.

Each round gives each session a quantum times its weight; a request is served once its session has saved up its cost.
What a session does not use it keeps, up to two quanta, also while it is away verifying: so one with a long return gets
its share all the same. The time that was really spent is settled when it is known.

A round ends as soon as none of those that wait can pay, however many of them that takes, so nothing is ever held back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from starsd_edge.planning.orders import CREDIT, DRR
from starsd_server.scheduling.contract import Waiting

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
        """See `Policy`: rounds until it can be served."""
        accounts, granted_s, quantum_s = self._accounts, self._granted_s, self._quantum_s
        ranks: list[float] = []
        for waiting in ready:
            account = accounts[waiting.request.session]
            missing_s = waiting.cost_s - account.saved_s - (granted_s - account.at) * account.weight
            ranks.append(max(0, math.ceil(missing_s / (account.weight * quantum_s) - _ROUNDING)))
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
        self._granted_s += self._quantum_s * self.ranks(batch[:1], 0.0)[0]
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
