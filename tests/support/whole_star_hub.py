"""The hub of `whole_star`: the real queue, scheduler, books and choice of shapes; drafting only takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from starsd_edge.bench.device_times import ModelDraftTimes
from starsd_edge.protocol.counters import walk
from starsd_edge.protocol.hub_side import OpenSession, QueueDraft
from starsd_edge.protocol.messages import Draft, Report
from starsd_edge.scheduling.policies import LATENCY
from starsd_edge.scheduling.scheduler import POLICIES, Scheduler
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.draft_queue import Batch, DraftQueue
from starsd_server.draft_size import ShapeControllers, share
from starsd_server.drafter_pool import Done
from starsd_server.measurements import Latencies, PassRecord
from tests.support.guessed_text import GuessedText
from tests.support.virtual_time import VirtualTime

KIND = "eagle"
JITTER = 0.05
"""How far passes of the hub and of targets are off, at most."""
_SHARE_S = 0.25
_BEFORE_PASS_S = 0.0003

Reply = Callable[[QueueDraft, DraftTree, float, float], None]
"""(request, tree, seconds in the queue, seconds in the drafter)."""


@dataclass(frozen=True)
class StarPlan:
    """Which star.

    Attributes:
        device: times of the hub's passes.
        fixed: shape of all drafts; None leaves it to the hub.
        wait_s: for every draft, whether it pays or not; None leaves it to the target.
        right_until_s: from then on all guesses are wrong.
        device_later: times of passes from `later_s` on.
    """

    targets: int
    device: ModelDraftTimes
    policy: str = LATENCY
    max_batch: int = 16
    shape: DraftShape = field(default_factory=lambda: DraftShape(8, 5, 4))
    fixed: DraftShape | None = None
    wait_s: float | None = None
    right_until_s: float = float("inf")
    device_later: ModelDraftTimes | None = None
    later_s: float = float("inf")


class StarConnection:
    """What the hub's measurements and shapes ask a connection for."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.terms = SimpleNamespace(drafter=KIND)


@dataclass
class _Session:
    """What the hub knows of one."""

    connection: Any
    text: GuessedText
    answered: Draft | None = None
    answered_at: float | None = None


class StarHub:
    """The parts of a hub, put together as `starsd_server.hub` and `protocol.hub_connection` do."""

    def __init__(self, time: VirtualTime, plan: StarPlan) -> None:
        self._time = time
        self._plan = plan
        self._pass_record = PassRecord([KIND], plan.max_batch)
        self._latencies = Latencies()
        scheduler = Scheduler(
            POLICIES[plan.policy](), predict=self._pass_record.predict, expect=self._latencies.expected_return_s
        )
        self._queue = DraftQueue(scheduler, plan.max_batch)
        self._shapes = ShapeControllers(time, plan.fixed)
        self._sessions: dict[int, _Session] = {}
        self._replies: dict[int, Reply] = {}
        self._luck = np.random.default_rng(0)
        self._busy = False
        self._share_out()

    def open(self, session: int, connection: Any, text: GuessedText) -> None:
        """A session begins."""
        self._sessions[session] = _Session(connection, text)
        self._queue.put(OpenSession(session, KIND, 0, 0))
        self._queue.take(self._time.now)

    def receive(self, session: int, epoch: int, ids: Sequence[int], shape: DraftShape, reply: Reply) -> None:
        """A request for a tree under the last of these tokens."""
        known, now, base_len = self._sessions[session], self._time.now, len(ids) - 1
        returned_s = None if known.answered_at is None else now - known.answered_at
        if known.answered is not None:
            self._shapes.judged(session, walk(known.answered, ids[known.answered.base_len + 1 :]))
        chosen = self._shapes.choose(session, known.connection, base_len, shape)
        request = QueueDraft(session, epoch, base_len, chosen, now, "alice", returned_s, 0.0)
        if chosen.max_nodes == 0:
            known.answered, known.answered_at = None, now
            reply(request, DraftTree.empty(), 0.0, 0.0)
            return
        self._shapes.returned(session, returned_s)
        self._latencies.observe(request, known.connection)
        self._replies[session] = reply
        self._queue.put(request)
        self._next()

    def _share_out(self) -> None:
        demands = self._shapes.demands()
        if demands:
            self._shapes.take(share(demands, self._pass_record.known_costs(), self._plan.max_batch))
        self._time.at(self._time.now + _SHARE_S, self._share_out)

    def _next(self) -> None:
        work = None if self._busy else self._queue.take(self._time.now)
        if isinstance(work, Batch):
            self._busy = True
            began, took_s = self._time.now, self._pass_s(work)
            self._time.at(began + took_s, lambda: self._done(work, began, took_s))

    def _pass_s(self, work: Batch) -> float:
        device = self._plan.device
        if self._plan.device_later is not None and self._time.now >= self._plan.later_s:
            device = self._plan.device_later
        depths = [min(each.request.shape.max_depth, each.request.shape.max_nodes) for each in work.answers]
        return device.pass_s(depths) * (1 + JITTER * (2 * self._luck.random() - 1))

    def _done(self, work: Batch, began: float, took_s: float) -> None:
        self._queue.spent(work, took_s)
        self._pass_record.take_in(Done((), work, KIND, took_s))
        for request in (answer.request for answer in work.answers):
            known = self._sessions[request.session]
            right = self._time.now < self._plan.right_until_s
            tree = known.text.tree(request.base_len, request.shape, right=right)
            self._shapes.drafted(request.session, len(tree))
            ids, parents = tree.tokens.tolist(), tree.parents.tolist()
            known.answered = Draft(b"", request.epoch, request.base_len, ids, parents, 0, 0, 0)
            known.answered_at = self._time.now
            self._replies[request.session](request, tree, began - request.received_at, took_s)
        self._busy = False
        self._time.at(self._time.now + _BEFORE_PASS_S, self._next)
