"""Drafts from the hub, with a second draft source as fallback.

One request is outstanding at a time. Meanwhile the target decodes on where that gives more than waiting. A late draft
is rebased: the part that hangs from the present root is kept. Only the part of a draft that is worth its rows is
verified. Whenever the hub has nothing for the present root, the fallback drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.codes import CLAMPED, CLOSED, EMPTY, LATE, LOCAL, SILENT, WEAK
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import NONE
from starsd_jetson.drafting import NOW, DraftSource, RoundDraft
from starsd_jetson.wait_policy import WaitPolicy


@dataclass(frozen=True)
class Asked:
    """A request that went out: its epoch and its payload in bytes."""

    epoch: int
    frame_bytes: int


class DraftChannel(Protocol):
    """One answer's session at the hub. No call blocks but `wait`; all of them do nothing useful while the hub is away,
    and none fails.
    """

    @property
    def pending(self) -> int | None:
        """Epoch of the request that is still to be answered; None when there is none or its answer was lost with the
        connection.
        """

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """True rows, in order."""

    def extend(self) -> None:
        """Send the rows not yet sent."""

    def request(self, shape: DraftShape) -> Asked | None:
        """Send the rows not yet sent and ask for a tree under the last token; None while that is not possible."""

    def wait(self, timeout_s: float) -> DraftArrived | None:
        """The newest draft not yet taken, waiting for it at most this long; None at once when the pending one cannot
        come any more.
        """

    def give_up(self) -> None:
        """The pending request is not waited for any more; its draft may still come and be taken."""

    def close(self) -> None:
        """The answer is over."""


OpenChannel: TypeAlias = Callable[[Sequence[int], str], DraftChannel]
"""Begins a session: (prompt, "greedy" or "sampled") -> channel."""
FindChannel: TypeAlias = Callable[[Sequence[int], str], "DraftChannel | None"]
"""As `OpenChannel`; None where no more sessions may be open."""


class HubDrafts:
    """A draft source on a link to the hub.

    Args:
        find_channel: begins a session; where it cannot, the fallback drafts for the whole answer.
        fallback: drafts whenever the hub does not.
        wait_policy: decides whether to ask, how long to wait and what to verify; it is kept from answer to answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        find_channel: FindChannel,
        fallback: DraftSource,
        wait_policy: WaitPolicy,
        clock: Callable[[], float],
    ) -> None:
        self._find_channel = find_channel
        self._fallback = fallback
        self._wait_policy = wait_policy
        self._clock = clock
        self._channel: DraftChannel | None = None
        self.why_off = ""
        """Why the last round used no draft of the hub: a reason of `starsd_edge.protocol.codes`; empty when it did."""

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        """Open a session and forget the last answer."""
        self._wait_policy.cost_model.begin(len(prompt))
        self._fallback.begin(prompt, sampling_kind)
        self._channel = self._find_channel(prompt, sampling_kind)
        self._ids = list(prompt[:1])
        self._shape = DraftShape(0, 0)
        self._asked_at = 0.0
        self._asked_base = self._asked_depth = 0
        self._first_epoch: int | None = None
        self._ready: RoundDraft | None = None
        self._own: RoundDraft | None = None
        self._ready_at = NOW
        self._others = 0
        self._bytes_up = 0
        self._bytes_down = 0
        self._missed = ""
        self._clamped_rows = 0

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Keep the rows for the next request."""
        self._ids.extend(ids)
        self._wait_policy.cost_model.estimator.append(ids)
        self._fallback.append(ids, features)
        if self._channel is not None:
            self._channel.append(ids, features)

    def extend(self) -> None:
        """Send the rows ahead, so that the hub's prefill runs beside ours."""
        if self._channel is not None:
            self._channel.extend()

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        """Request a tree under the present root, unless a late one fits it, one is still outstanding, or none pays."""
        shape = self._shape = self._wait_policy.wanted(shape)
        self._others = others
        self._missed = ""
        self._ready = self._collect(0.0)
        if self._channel is None or self._ready is not None or shape.max_nodes == 0 or shape.max_depth == 0:
            return
        self._give_up_if_silent(self._channel)
        if self._channel.pending is not None:
            return
        if not self._wait_policy.asks(shape, others):
            return
        asked = self._channel.request(shape)
        if asked is None:
            self._missed = CLOSED
        else:
            self._asked_at = self._clock()
            self._asked_base = len(self._ids) - 1
            self._asked_depth = shape.max_depth
            if self._first_epoch is None:
                self._first_epoch = asked.epoch
            self._bytes_up += asked.frame_bytes

    def ready_at(self) -> float:
        """Until when the outstanding tree is worth a wait. What the fallback has is looked at first, and how long the
        wait may be is decided once in a round.
        """
        if self._own is None:
            self._fallback.ask(self._shape)
            self._own = self._fallback.take()
            self._ready = self._ready or self._collect(0.0)
            self._ready_at = NOW if self._ready is not None else self._last_wait(self._own)
        elif self._ready is None and self._ready_at > NOW:
            self._ready = self._collect(0.0)
        if self._ready is not None or not self._is_outstanding:
            self._ready_at = NOW
        return self._ready_at

    def take(self) -> RoundDraft:
        """The hub's tree if one is there or worth the wait, else the fallback's."""
        began = self._clock()
        while (until := self.ready_at()) > self._clock():
            self._ready = self._collect(until - self._clock())
        waited = self._clock() - began
        draft, own = self._ready, self._own or RoundDraft(DraftTree.empty(), NONE)
        if draft is not None and self._wait_policy.prefers(own, draft):
            draft, self._missed = None, LOCAL
        self.why_off = "" if draft is not None else self._why_off()
        draft = draft or own
        draft = replace(
            draft, bytes_up=self._bytes_up, bytes_down=self._bytes_down, wait_s=waited, why_off=self.why_off
        )
        self._ready, self._own, self._bytes_up, self._bytes_down = None, None, 0, 0
        return draft

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        """Give the cost models of hub and fallback the time of the round."""
        self._wait_policy.cost_model.times.add(rows, seconds)
        self._fallback.verified(rows, tokens, seconds)

    def end(self) -> None:
        """Close the session."""
        self._fallback.end()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def _is_outstanding(self) -> bool:
        return self._channel is not None and self._channel.pending is not None

    def _last_wait(self, own: RoundDraft) -> float:
        """Until when to wait for the outstanding tree: as long as that is better than going on with the target's own
        draft.
        """
        if not self._is_outstanding:
            return NOW
        now, walked = self._clock(), len(self._ids) - 1 - self._asked_base
        return now + self._wait_policy.wait_s(self._shape, now - self._asked_at, walked, own, self._others)

    def _collect(self, timeout_s: float) -> RoundDraft | None:
        """What is left, under the present root, of the next draft to arrive; None when that is nothing."""
        arrived = self._channel.wait(timeout_s) if self._channel is not None else None
        if arrived is None:
            return None
        self._bytes_down += arrived.frame_bytes
        self._clamped_rows = arrived.clamped_rows
        if arrived.epoch in (1, self._first_epoch):  # the first of a session, or of an answer
            self._wait_policy.prefilled()
        else:
            hub_us = arrived.queue_us + arrived.service_us
            self._wait_policy.answered(arrived.round_trip_us / 1e6, arrived.queue_us / hub_us if hub_us else 0.0)
        walked = len(self._ids) - 1 - arrived.base_len
        if walked < 0 or arrived.base_len < 0:
            return None
        emitted = self._ids[arrived.base_len + 1 :]
        self._wait_policy.cost_model.estimator.expect(arrived.tree, self._asked_depth, emitted)
        if len(arrived.tree) == 0:
            self._missed = EMPTY
            return None
        left = arrived.tree.rebase(emitted)
        draft = self._wait_policy.judge(left, walked) if len(left) else None
        if draft is None or len(draft.tree) == 0:
            self._missed = draft.why_off if draft is not None else self._wait_policy.why_off or LATE
            return None
        return replace(draft, late=walked > 0, service_s=arrived.service_us / 1e6)

    def _why_off(self) -> str:
        why = self._why_missing()
        return CLAMPED if self._clamped_rows and why in WEAK else why

    def _why_missing(self) -> str:
        if self._shape.max_nodes == 0 or self._shape.max_depth == 0:
            return self.why_off  # the end of an answer has room for no draft and says nothing about the hub
        if self._missed:
            return self._missed
        if self._wait_policy.is_unanswered and self._is_outstanding:
            return SILENT
        if self._wait_policy.why_off:
            return self._wait_policy.why_off
        return LATE if self._is_outstanding else CLOSED

    def _give_up_if_silent(self, channel: DraftChannel) -> None:
        """Ask anew, under a higher epoch, once the outstanding request has been silent for too long."""
        if channel.pending is not None and self._clock() - self._asked_at > self._wait_policy.silence_s:
            self._wait_policy.given_up()
            channel.give_up()
