"""Drafts from the hub, with something to fall back on.

One request is outstanding at a time. A draft that comes in time is used as it is; for a late one the answer has gone
on, so it is rebased onto what was emitted meanwhile and used if anything of it is left. Whenever the hub has nothing
for the present root, the fallback drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.reasons import CLOSED, EMPTY, LATE, SILENT
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.drafting import Draft, DraftSource
from starsd_jetson.patience import Patience


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


class HubDrafts:
    """A draft source on a link to the hub.

    Args:
        open_channel: begins a session.
        fallback: drafts whenever the hub does not.
        patience: decides how long to wait; it outlives the answers.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        open_channel: OpenChannel,
        fallback: DraftSource,
        patience: Patience,
        clock: Callable[[], float],
    ) -> None:
        self._open_channel = open_channel
        self._fallback = fallback
        self._patience = patience
        self._clock = clock
        self._channel: DraftChannel | None = None
        self.why_off = ""
        """Why the last round used no draft of the hub: one of `reasons`, empty when it did."""

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        """Open a session and forget the last answer."""
        self._fallback.begin(prompt, sampling_kind)
        self._channel = self._open_channel(prompt, sampling_kind)
        self._ids = list(prompt[:1])
        self._shape = DraftShape(0, 0)
        self._asked_at = 0.0
        self._taken_at: float | None = None
        self._asked_now = False
        self._first_epoch: int | None = None
        self._ready: Draft | None = None
        self._bytes_up = 0
        self._bytes_down = 0
        self._missed = ""

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Keep the rows for the next request."""
        self._ids.extend(ids)
        self._fallback.append(ids, features)
        if self._channel is not None:
            self._channel.append(ids, features)

    def extend(self) -> None:
        """Send the rows ahead, so that the hub's prefill runs beside ours."""
        if self._channel is not None:
            self._channel.extend()

    def ask(self, shape: DraftShape) -> None:
        """Request a tree under the present root, unless a late one fits it or one is still outstanding."""
        self._note_own_round()
        self._shape = shape
        self._asked_now = False
        self._missed = ""
        self._ready = self._collect(0.0)
        if self._channel is None or self._ready is not None or shape.max_nodes == 0 or shape.max_depth == 0:
            return
        self._give_up_if_silent(self._channel)
        if self._channel.pending is not None:
            return
        asked = self._channel.request(shape)
        if asked is not None:
            self._asked_at = self._clock()
            self._asked_now = True
            if self._first_epoch is None:
                self._first_epoch = asked.epoch
            self._bytes_up += asked.frame_bytes

    def take(self) -> Draft:
        """The hub's tree if one is there or worth the wait, else the fallback's."""
        began = self._clock()
        draft = self._ready
        if draft is None and self._channel is not None:
            draft = self._await() if self._asked_now else self._collect(0.0)
        waited = self._clock() - began
        self.why_off = "" if draft is not None else self._why_off()
        if draft is None:
            self._fallback.ask(self._shape)
            draft = self._fallback.take()
        draft = replace(draft, bytes_up=self._bytes_up, bytes_down=self._bytes_down, wait_s=waited)
        self._ready, self._bytes_up, self._bytes_down = None, 0, 0
        self._taken_at = self._clock()
        return draft

    def end(self) -> None:
        """Close the session."""
        self._fallback.end()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _await(self) -> Draft | None:
        """Wait for the tree asked for in this round, as long as patience lasts."""
        deadline = self._asked_at + self._patience.wait_s(self._shape.max_depth)
        while self._channel is not None and self._channel.pending is not None:
            left = deadline - self._clock()
            if left <= 0:
                return self._collect(0.0)
            draft = self._collect(left)
            if draft is not None:
                return draft
        return self._collect(0.0)

    def _collect(self, timeout_s: float) -> Draft | None:
        """What is left, under the present root, of the next draft to arrive; None when that is nothing."""
        arrived = self._channel.wait(timeout_s) if self._channel is not None else None
        if arrived is None:
            return None
        self._bytes_down += arrived.frame_bytes
        if arrived.epoch not in (1, self._first_epoch) or self._patience.round_trips.samples == 0:
            # The first draft of a session, or of an answer, includes the hub's prefill and says little about the next.
            self._patience.answered(arrived.round_trip_us / 1e6)
        tree = self._rebase(arrived)
        if len(tree) == 0:
            self._missed = LATE if len(arrived.tree) else EMPTY
            return None
        late = arrived.base_len < len(self._ids) - 1
        return Draft(tree, HUB, late, service_s=arrived.service_us / 1e6)

    def _why_off(self) -> str:
        if self._shape.max_nodes == 0 or self._shape.max_depth == 0:
            return self.why_off  # the end of an answer has room for no draft and says nothing about the hub
        if self._missed:
            return self._missed
        if self._channel is None or self._channel.pending is None:
            return CLOSED
        return SILENT if self._patience.is_unanswered else LATE

    def _rebase(self, arrived: DraftArrived) -> DraftTree:
        root = len(self._ids) - 1
        if not 0 <= arrived.base_len <= root:
            return DraftTree.empty()
        return arrived.tree.rebase(self._ids[arrived.base_len + 1 :])

    def _give_up_if_silent(self, channel: DraftChannel) -> None:
        """Ask anew, under a higher epoch, once the outstanding request has been silent for too long."""
        if channel.pending is not None and self._clock() - self._asked_at > self._patience.silence_s:
            self._patience.given_up()
            channel.give_up()

    def _note_own_round(self) -> None:
        if self._taken_at is not None:
            self._patience.own_round(self._clock() - self._taken_at)
