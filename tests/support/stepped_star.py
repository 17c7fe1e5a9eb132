"""A target's link and a hub, both by their real protocols, in simulated time: frames take their time, the hub takes its
own to become warm and to draft, and nothing sleeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from starsd_edge.protocol.hub_side import (
    AddRows,
    HubAction,
    HubLimits,
    HubProtocol,
    Offer,
    OpenSession,
    QueueDraft,
    Send,
)
from starsd_edge.protocol.target_side import DraftArrived, SessionOpened, TargetProtocol, TargetSession
from starsd_edge.speculation.tree import DraftTree
from starsd_jetson.hub_channel import HubChannel
from tests.support.simulated_star import Clock
from tests.support.wire import a_hello

KIND = "eagle"


@dataclass(frozen=True)
class Absorbed:
    """Rows that reached the drafter, and when."""

    at: float
    first_row: int
    features: Sequence[Sequence[float]]


class SteppedStar:
    """Between a `TargetProtocol` and a `HubProtocol`. Frames arrive when the target looks, as on a link of its own.

    Args:
        truth: the text that the drafter foresees.
        warm_s: when the hub's drafter is ready.
        draft_from_s: before that it drafts nothing, busy with the rows of prompts.
        one_way_s: of a frame.
        service_s: of a draft.
    """

    def __init__(
        self,
        clock: Clock,
        truth: Sequence[int],
        *,
        warm_s: float,
        draft_from_s: float = 0.0,
        one_way_s: float = 0.002,
        service_s: float = 0.005,
        window: int | None = None,
        codecs: Sequence[str] = ("i1", "f2"),
        **hello: Any,
    ) -> None:
        self.clock = clock
        self.absorbed: list[Absorbed] = []
        self.opened: list[OpenSession] = []
        self._truth = truth
        self._draft_from_s = draft_from_s
        self._one_way_s = one_way_s
        self._service_s = service_s
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._channels: dict[TargetSession, HubChannel] = {}
        tags = (number.to_bytes(16, "big") for number in count(1))
        self.hub = HubProtocol("hub-1", lambda _: Offer(KIND, "fp", codecs[0]), HubLimits(), tags.__next__)
        self.target = TargetProtocol(a_hello(codecs=list(codecs), **hello), clock, window)
        self._connection = self.hub.connect("alice")
        self._at(warm_s, lambda: self._act(self.hub.ready(KIND)))
        self.target.connected()
        self._flush()
        self._deliver(3 * one_way_s)

    def open_channel(self, prompt: Sequence[int], sampling_kind: str) -> HubChannel:
        """As the link opens one."""
        session = self.target.open_session(prompt, sampling_kind)
        condition: Any = _Now(self)
        channel = HubChannel(session, self.target, condition, self._flush, lambda each: None)
        self._channels[session] = channel
        self._flush()
        return channel

    def catch_up(self) -> None:
        """What was due until now has happened."""
        self._deliver(self.clock.now)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Let time pass until something makes this true, at most so long."""
        until = self.clock.now + timeout_s
        while not condition() and self._due and self._due[0][0] <= until:
            self.clock.now = max(self.clock.now, self._due[0][0])
            self._deliver(self.clock.now)
        if not condition():
            self.clock.now = until
        return condition()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    def _deliver(self, until: float) -> None:
        present = self.clock.now
        while self._due and self._due[0][0] <= until:
            self.clock.now, _, what = heapq.heappop(self._due)
            what()
        self.clock.now = present

    def _flush(self) -> int:
        frames = self.target.frames()
        for frame in frames:
            self._at(self.clock.now + self._one_way_s, lambda frame=frame: self._hear_at_hub(frame))  # type: ignore[misc]
        return sum(map(len, frames))

    def _hear_at_hub(self, frame: bytes) -> None:
        self._act(self._connection.receive(frame, self.clock.now, 0))

    def _act(self, actions: Sequence[HubAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._at(self.clock.now + self._one_way_s, lambda frame=action.frame: self._hear_at_target(frame))  # type: ignore[misc]
            elif isinstance(action, AddRows):
                features = [] if action.rows.features is None else action.rows.features.astype(float).tolist()
                self.absorbed.append(Absorbed(self.clock.now, action.rows.first_row, features))
            elif isinstance(action, OpenSession):
                self.opened.append(action)
            elif isinstance(action, QueueDraft):
                begins = max(self.clock.now, self._draft_from_s)
                self._at(begins + self._service_s, lambda asked=action: self._draft(asked))  # type: ignore[misc]

    def _draft(self, asked: QueueDraft) -> None:
        first = asked.base_len + 1
        tree = DraftTree.chain(np.asarray(self._truth[first : first + asked.shape.max_depth]).tolist())
        service_us = round(self._service_s * 1e6)
        self._act(self.hub.answer(asked.session, asked.epoch, asked.base_len, tree, 0, service_us, self.clock.now))

    def _hear_at_target(self, frame: bytes) -> None:
        for event in self.target.receive(frame):
            if isinstance(event, DraftArrived):
                self._channels[event.session].on_draft(event)
            elif isinstance(event, SessionOpened) and event.session in self._channels:
                self._channels[event.session].on_void()
        self._flush()


class _Now:
    """In the place of the link's lock: who takes it sees what has arrived by now."""

    def __init__(self, star: SteppedStar) -> None:
        self._star = star

    def __enter__(self) -> None:
        self._star.catch_up()

    def __exit__(self, *exception: object) -> None:
        """Nothing is locked."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        return self._star.wait_for(predicate, timeout)

    def notify_all(self) -> None:
        """Nobody sleeps."""
