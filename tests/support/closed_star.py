"""A star without sockets or threads: targets ask, verify and ask again on the real queue of a hub, in made-up time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starsd_edge.protocol.hub_side import AddRows, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.scheduling.policies import KeyTerms
from starsd_edge.scheduling.scheduler import POLICIES, Scheduler
from starsd_edge.speculation.tree import DraftShape
from starsd_server.draft_queue import Absorb, Batch, DraftQueue

LEVEL_S = 0.001


@dataclass(frozen=True)
class Spoke:
    """A target with one session.

    Attributes:
        return_s: from its draft to its next request; one after the other, over and over.
        levels: that it asks for, each of `LEVEL_S` in the drafter.
        first_s: when it asks first.
    """

    return_s: Sequence[float]
    levels: int = 12
    first_s: float = 0.0
    terms: KeyTerms = field(default_factory=KeyTerms)


@dataclass
class Ledger:
    """What came of it, by session.

    Attributes:
        waits_s: of each request, those that still wait at the end included.
        drafted_s: time of the drafter, that of a batch in equal parts.
        idle_s: of the drafter.
        policies: that were in use.
    """

    waits_s: list[list[float]]
    drafted_s: list[float]
    idle_s: float = 0.0
    passes: int = 0
    policies: set[str] = field(default_factory=set)


class ClosedStar:
    """See the module. `misjudged`: by what factor passes take longer than predicted."""

    def __init__(
        self,
        policy: str,
        spokes: Sequence[Spoke],
        max_batch: int = 1,
        misjudged: float = 1.0,
        prefill_row_s: float = 0.0,
    ) -> None:
        terms = {str(session): spoke.terms for session, spoke in enumerate(spokes)}
        self._known: dict[int, float] = {}
        scheduler = Scheduler(
            POLICIES[policy](), terms, lambda drafter, shape: LEVEL_S * shape.max_depth, self._known.get
        )
        self.queue = DraftQueue(scheduler, max_batch)
        self._spokes = spokes
        self._misjudged = misjudged
        self._prefill_row_s = prefill_row_s

    def run(self, until_s: float) -> Ledger:
        """From 0 on."""
        count = len(self._spokes)
        ledger = Ledger([[] for _ in range(count)], [0.0] * count)
        coming = [(spoke.first_s, session) for session, spoke in enumerate(self._spokes)]
        heapq.heapify(coming)
        since: dict[int, float] = {}
        asked = [0] * count
        now = 0.0
        while now < until_s:
            while coming and coming[0][0] <= now:
                at, session = heapq.heappop(coming)
                asked[session] += 1
                since[session] = at
                self.queue.put(self._request(session, asked[session], at))
            if self._prefill_row_s and not self.queue.depth.rows:
                self.queue.put(AddRows(NewRows(count, 0, [1] * 1000), "prefill"))
            work = self.queue.take(now)
            ledger.policies.add(self.queue.policy)
            if work is None:
                ledger.idle_s += coming[0][0] - now
                now = coming[0][0]
                continue
            began = now
            if isinstance(work, Absorb):
                now += self._prefill_row_s * len(work.rows.ids)
            elif isinstance(work, Batch):
                sessions = [answer.request.session for answer in work.answers]
                now += self._misjudged * LEVEL_S * max(self._spokes[session].levels for session in sessions)
                ledger.passes += 1
                for session in sessions:
                    ledger.waits_s[session].append(began - since.pop(session))
                    ledger.drafted_s[session] += (now - began) / len(sessions)
                    returns = self._spokes[session].return_s
                    heapq.heappush(coming, (now + returns[asked[session] % len(returns)], session))
            self.queue.spent(work, now - began)
        for session, at in since.items():
            ledger.waits_s[session].append(now - at)
        return ledger

    def _request(self, session: int, epoch: int, at: float) -> QueueDraft:
        spoke = self._spokes[session]
        if epoch > 1:
            self._known[session] = sum(spoke.return_s) / len(spoke.return_s)
        return QueueDraft(session, epoch, 0, DraftShape(spoke.levels, spoke.levels, 1), at, str(session))


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1 / n when one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def jittered(seconds: float, share: float, uniform: Callable[[float, float], float], count: int = 50) -> list[float]:
    """Durations around one."""
    return [seconds * uniform(1 - share, 1 + share) for _ in range(count)]
