"""A whole star in made-up time: many targets, each with the real waiting and weighing, and one hub with the real queue,
scheduler, books and choice of shapes. Only models, frames and the network are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from starsd_edge.bench.device_times import ModelDraftTimes
from starsd_edge.protocol.hub_side import QueueDraft
from starsd_edge.protocol.messages import Report
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.scheduling.policies import FIFO
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import NONE, Round
from starsd_jetson.drafting import NoDrafts
from starsd_jetson.hub_drafting import Asked, HubDrafts
from starsd_jetson.reporting import Reporter
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.guessed_text import GuessedText
from tests.support.virtual_time import Bell, VirtualTime
from tests.support.whole_star_hub import JITTER, StarConnection, StarHub, StarPlan

ALWAYS_S = 10.0
PLAIN_S, ROW_SHARE, OWN_S = 0.035, 0.03, 0.001
"""A target's pass over one row, what each further one adds, and what its round takes beside it."""
_RTT_S = 0.001
_WORST, _SPREAD = 0.33, 0.2
"""How often the likeliest guess is right for the worst of the targets, and how much better it is for the best."""


@dataclass(frozen=True)
class Course:
    """(when, tokens) of every round."""

    emitted: Sequence[tuple[float, int]]

    def tokens_per_s(self, begin_s: float, end_s: float) -> float:
        """Between these times."""
        return sum(tokens for at, tokens in self.emitted if begin_s <= at < end_s) / (end_s - begin_s)


def published(targets: int, device: ModelDraftTimes) -> StarPlan:
    """First come, first served, one at a time, trees of one shape, every draft waited for."""
    return StarPlan(targets, device, FIFO, 1, fixed=DraftShape(8, 5, 4), wait_s=ALWAYS_S)


def plain_tokens_per_s(targets: int) -> float:
    """Of that many that decode token by token."""
    return targets / (PLAIN_S + OWN_S)


def decode(plan: StarPlan, seconds: float) -> Course:
    """What all targets together emit in so long."""
    emitted: list[tuple[float, int]] = []
    with VirtualTime() as time:
        hub = StarHub(time, plan)

        def count(done: Round) -> None:
            emitted.append((time.now, done.emitted))

        for number in range(plan.targets):
            acceptance = _WORST + _SPREAD * (7 * number % 16) / 15
            time.start(StarTarget(time, hub, plan, number, GuessedText(number, acceptance), count).run)
        time.run(seconds)
    return Course(emitted)


class StarTarget:
    """One target: the loop of `starsd_jetson.decoder` with a pass that only takes time, on one endless text."""

    def __init__(
        self,
        time: VirtualTime,
        hub: StarHub,
        plan: StarPlan,
        number: int,
        text: GuessedText,
        count: Callable[[Round], None],
    ) -> None:
        self._time = time
        self._shape = plan.shape
        self._count = count
        self._luck = np.random.default_rng(number)
        self._connection = StarConnection()
        hub.open(number, self._connection, text)
        channel = _Channel(time, hub, number)
        self._source = HubDrafts(lambda prompt, kind: channel, NoDrafts(), WaitPolicy(plan.wait_s), time)
        self._reporter = Reporter(self._tell, time)

    def run(self) -> None:
        """Decode for ever."""
        self._time.wait(self._time.now + PLAIN_S * self._luck.random())
        self._source.begin([GuessedText.at(0)], "greedy")
        position = 0
        emitted = 1
        while True:
            self._source.append([GuessedText.at(position + 1 + step) for step in range(emitted)], None)
            position += emitted
            self._source.ask(self._shape)
            self._time.wait(self._time.now + OWN_S)
            emitted = self._round(position)

    def _round(self, position: int) -> int:
        began = self._time.now
        draft = self._source.take()
        rows = 1 + len(draft.tree)
        verify_s = PLAIN_S * (1 + ROW_SHARE * (rows - 1)) * (1 + JITTER * (2 * self._luck.random() - 1))
        self._time.wait(self._time.now + verify_s)
        accepted, node = 0, -1
        while (token := GuessedText.at(position + 1 + accepted)) in draft.tree.children.get(node, {}):
            node = draft.tree.children[node][token]
            accepted += 1
        round_s = self._time.now - began + OWN_S
        self._source.verified(rows, accepted + 1, round_s - draft.wait_s)
        done = Round(
            origin=draft.origin if rows > 1 else NONE,
            drafted=rows - 1,
            accepted=accepted,
            emitted=accepted + 1,
            round_s=round_s,
            verify_s=verify_s,
            wait_s=draft.wait_s,
        )
        self._reporter.round(done)
        self._count(done)
        return accepted + 1

    def _tell(self, report: Report) -> None:
        self._time.at(self._time.now + _RTT_S / 2, lambda: setattr(self._connection, "report", report))


class _Channel:
    """A `DraftChannel` whose frames take half a round trip each way."""

    def __init__(self, time: VirtualTime, hub: StarHub, session: int) -> None:
        self.pending: int | None = None
        self._time = time
        self._hub = hub
        self._session = session
        self._ids = [GuessedText.at(0)]
        self._epoch = 0
        self._arrived: list[DraftArrived] = []
        self._bell = Bell()

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self._ids.extend(ids)

    def extend(self) -> None:
        """Rows go with requests."""

    def request(self, shape: DraftShape) -> Asked:
        self._epoch += 1
        epoch, ids, sent_at = self._epoch, tuple(self._ids), self._time.now
        self.pending = epoch

        def reply(request: QueueDraft, tree: DraftTree, queue_s: float, service_s: float) -> None:
            self._time.at(self._time.now + _RTT_S / 2, lambda: self._arrive(request, tree, sent_at, queue_s, service_s))

        self._time.at(sent_at + _RTT_S / 2, lambda: self._hub.receive(self._session, epoch, ids, shape, reply))
        return Asked(epoch, 0)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        if not self._arrived and self.pending is not None and timeout_s > 0:
            self._time.wait(self._time.now + timeout_s, self._bell)
        if not self._arrived:
            return None
        draft = self._arrived.pop(0)
        if draft.epoch == self.pending:
            self.pending = None
        return draft

    def give_up(self) -> None:
        self.pending = None

    def close(self) -> None:
        self.pending = None

    def _arrive(self, request: QueueDraft, tree: DraftTree, sent_at: float, queue_s: float, service_s: float) -> None:
        queue_us, service_us, took_us = (round(1e6 * each) for each in (queue_s, service_s, self._time.now - sent_at))
        session: Any = None
        self._arrived.append(
            DraftArrived(
                session=session,
                epoch=request.epoch,
                base_len=request.base_len,
                tree=tree,
                round_trip_us=took_us,
                hub_us=queue_us + service_us,
                queue_us=queue_us,
                service_us=service_us,
                frame_bytes=0,
            )
        )
        self._bell.ring()
