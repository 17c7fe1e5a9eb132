"""Policy, classes and batches put together: what the queue asks when the drafter is free.

Whatever the policy, a request waits for less than `longest_wait_s`: each `PROMOTED_AFTER_S` in the queue lift it by a
class, so that after some time only those go first that have waited for longer still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starsd_edge.protocol.hub_side import QueueDraft
from starsd_edge.scheduling.policies import (
    DRR,
    FIFO,
    LATENCY,
    MOST_RETURN_S,
    SRF,
    DeficitRoundRobin,
    Fifo,
    KeyTerms,
    LoadAdaptive,
    Policy,
    ShortestReturn,
    Waiting,
)
from starsd_edge.speculation.tree import DraftShape

POLICIES: Mapping[str, Callable[[], Policy]] = {
    LATENCY: LoadAdaptive,
    DRR: DeficitRoundRobin,
    FIFO: Fifo,
    SRF: ShortestReturn,
}
DEFAULT_POLICY = LATENCY
"""Name of the policy of a hub that is told no other."""
PROMOTED_AFTER_S = 2.0
"""Seconds in the queue for each priority class that a request rises, so that none waits for ever."""
MOST_UNEVEN = 2.0
"""Most that the draft of a request in a batch may take, as a multiple of the most urgent request's draft: that one's
target waits for the whole batch.
"""
_USUAL_GAIN = 1 / 32
"""Weight of the newest return time in the mean over all sessions. The mean is used for a session without a return time.
"""

ExpectReturn = Callable[[int], float | None]
"""Expected seconds from a draft of this session to its next request; None while nothing is known."""
PredictCost = Callable[[str, DraftShape], float]
"""Expected seconds of a pass of this drafter for one request of this shape."""


class Scheduler:
    """Says which requests the drafter serves next. Not thread-safe.

    Args:
        policy: the rule by which requests are ordered; None takes `DEFAULT_POLICY`.
        terms: terms by key, for the keys that have other terms than `KeyTerms()`.
        predict: see `PredictCost`.
        expect: see `ExpectReturn`.
        promoted_after_s: time in the queue for each class that a request rises; infinite leaves all to the policy.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        terms: Mapping[str, KeyTerms] | None = None,
        predict: PredictCost = lambda drafter, shape: 1e-3 * (1 + min(shape.max_depth, shape.max_nodes)),
        expect: ExpectReturn = lambda session: None,
        promoted_after_s: float = PROMOTED_AFTER_S,
    ) -> None:
        self._policy = policy or POLICIES[DEFAULT_POLICY]()
        self._terms = terms or {}
        self._classes = any(terms.priority for terms in self._terms.values())
        self._predict = predict
        self._expect = expect
        self._promoted_after_s = promoted_after_s
        self._usual_return_s = 0.0

    @property
    def policy(self) -> str:
        """Name of the rule that is followed now."""
        return self._policy.name

    def admit(self, request: QueueDraft, drafter: str, before: Waiting | None) -> Waiting:
        """A request comes in, in the place of `before` if that waits already."""
        returns_s = self._expect(request.session)
        if returns_s is None:
            returns_s = self._usual_return_s
        else:
            returns_s = min(returns_s, MOST_RETURN_S)
            self._usual_return_s += _USUAL_GAIN * (returns_s - self._usual_return_s)
        waiting = Waiting(
            request,
            drafter,
            request.received_at if before is None else before.arrived,
            returns_s,
            self._predict(drafter, request.shape),
            self._terms.get(request.owner, KeyTerms()),
        )
        self._policy.arrived(waiting)
        return waiting

    def ranked(self, ready: Sequence[Waiting], now: float) -> list[Waiting]:
        """The most urgent first.

        Args:
            ready: in the order of their arrival.
        """
        ranks = self._policy.ranks(ready, now)
        by_rank = [ready[at] for at in sorted(range(len(ready)), key=ranks.__getitem__)]
        if self._classes or ready[0].arrived + self._promoted_after_s <= now:
            by_rank.sort(key=lambda waiting: -self._class_of(waiting, now))
        return by_rank

    def take_batch(
        self, ready: Sequence[Waiting], now: float, most: int, room: int = 0, size: Callable[[int], int] = lambda _: 0
    ) -> list[Waiting]:
        """The most urgent request and, in their order, those that share its pass. They are drafted now.

        Args:
            ready: at least one, in the order of their arrival.
            most: requests in a pass.
            room: what the sizes in a batch may come to; the first is taken whatever its size.
            size: gives the size of a session's request, in the unit of `room`.
        """
        ranked = self.ranked(ready, now)
        first = ranked[0]
        batch: list[Waiting] = []
        for waiting in ranked:
            takes = size(waiting.session)
            if waiting is first or (goes_with(first, waiting) and takes <= room):
                room -= takes
                batch.append(waiting)
                if len(batch) == most:
                    break
        self._policy.taken(batch, len(ranked) - len(batch))
        return batch

    def spent(self, sessions: Sequence[int], seconds: float) -> None:
        """The batch of these sessions kept the drafter busy for this many seconds."""
        for session in sessions:
            self._policy.spent(session, seconds / len(sessions))

    def forget(self, session: int) -> None:
        """The session is gone."""
        self._policy.forget(session)

    def _class_of(self, waiting: Waiting, now: float) -> int:
        return waiting.terms.priority + int((now - waiting.arrived) / self._promoted_after_s)


def goes_with(first: Waiting, other: Waiting) -> bool:
    """Whether a request can share the pass of a more urgent one: levels are drafted one after the other, so a batch
    takes as long as its deepest tree.
    """
    return other.drafter == first.drafter and other.cost_s <= MOST_UNEVEN * first.cost_s


def longest_wait_s(sessions: int, pass_s: float, classes_above: int = 0) -> float:
    """No request waits for longer, whatever the policy, weights and return times.

    After `classes_above + 1` promotions more than those of a request that waited for `sessions * pass_s`, only requests
    go first that have waited for at least that; and in that time each other session can be served once before it has
    to wait anew.

    Args:
        sessions: number of sessions that have requests.
        pass_s: the longest pass, with the turn of prefill that may come before it.
        classes_above: highest class in use, less the request's own.
    """
    return (classes_above + 1) * PROMOTED_AFTER_S + (2 * sessions + 1) * pass_s
