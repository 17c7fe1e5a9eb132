"""One answer's session at the hub, as the decode thread uses it; the link's thread feeds it with what arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.target_side import DraftArrived, ProbeAnswered, ProbeRefused, TargetSession
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.hub_drafting import Asked


class SessionCloser(Protocol):
    """The part of `TargetProtocol` that ends a session."""

    def close_session(self, session: TargetSession) -> None:
        """As `TargetProtocol.close_session`."""


class HubChannel:
    """A `DraftChannel` on the link's state machine.

    The decode thread calls the methods of the contract, the link's thread those named `on_...`, the latter with the
    lock held.

    Args:
        session: this answer's session.
        protocol: ends it.
        changed: the link's lock; notified whenever something arrives for this channel.
        flush: hands the frames that the state machine made to the link's writer and gives their size in bytes; called
            with the lock held.
        forget: takes this channel off the link's list; called with the lock held.
    """

    def __init__(
        self,
        session: TargetSession,
        protocol: SessionCloser,
        changed: threading.Condition,
        flush: Callable[[], int],
        forget: Callable[[TargetSession], None],
    ) -> None:
        self._session = session
        self._protocol = protocol
        self._changed = changed
        self._flush = flush
        self._forget = forget
        self._pending: int | None = None
        self._arrived: DraftArrived | None = None

    @property
    def pending(self) -> int | None:
        """Epoch of the request that is still to be answered; None when there is none or its answer cannot come any
        more.
        """
        return self._pending

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Keep rows for the next message."""
        with self._changed:
            self._session.append(ids, features)

    def extend(self) -> None:
        """Send the rows not yet sent."""
        with self._changed:
            self._session.extend()
            self._flush()

    def request(self, shape: DraftShape) -> Asked | None:
        """Send the rows not yet sent and ask for a tree; None while the hub does not have this session."""
        with self._changed:
            epoch = self._session.request(shape)
            frame_bytes = self._flush()
            if epoch is None:
                return None
            self._pending = epoch
            return Asked(epoch, frame_bytes)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        """The newest draft not yet taken, waiting for it at most this long; None at once when the pending one cannot
        come any more.
        """
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._arrived is not None or self._pending is None, timeout_s)
            arrived, self._arrived = self._arrived, None
            return arrived

    def give_up(self) -> None:
        """The pending request is not waited for any more; its draft may still come and be taken."""
        with self._changed:
            self._pending = None

    def close(self) -> None:
        """The answer is over: the hub may free what it holds."""
        with self._changed:
            self._pending = None
            self._protocol.close_session(self._session)
            self._forget(self._session)
            self._flush()

    def on_draft(self, draft: DraftArrived) -> None:
        """A draft came; it takes the place of one not taken yet."""
        self._arrived = draft
        if self._pending is not None and draft.epoch >= self._pending:
            self._pending = None
        self._changed.notify_all()

    def on_refused(self, epoch: int) -> None:
        """The request of this epoch, or a later one, will not be answered."""
        if self._pending is not None and epoch >= self._pending:
            self.on_void()

    def on_void(self) -> None:
        """What was asked for will not be answered: the connection or the session at the hub is gone."""
        self._pending = None
        self._changed.notify_all()


class Prober(Protocol):
    """The part of `TargetProtocol` that sends a probe."""

    def probe(self, payload_bytes: int, want_bytes: int) -> int | None:
        """As `TargetProtocol.probe`."""


class LinkProbe:
    """Measures the link: one probe at a time, sent by the caller's thread and answered on the link's thread. The link's
    thread calls the methods named `on_...`, with the lock held.

    Args:
        protocol: sends it.
        changed: the link's lock; notified when something comes of it.
        flush: hands the frames that the state machine made to the link's writer; called with the lock held.
    """

    def __init__(self, protocol: Prober, changed: threading.Condition, flush: Callable[[], int]) -> None:
        self._protocol = protocol
        self._changed = changed
        self._flush = flush
        self._pending: int | None = None
        self._answer: ProbeAnswered | None = None

    def measure(self, payload_bytes: int, want_bytes: int, timeout_s: float) -> ProbeAnswered | None:
        """Send a probe and wait for the answer; None if the hub refuses it, is away, or does not answer in time."""
        with self._changed:
            self._answer = None
            self._pending = self._protocol.probe(payload_bytes, want_bytes)
            self._flush()
            self._changed.wait_for(lambda: self._pending is None, timeout_s)
            self._pending = None
            return self._answer

    def on_outcome(self, event: ProbeAnswered | ProbeRefused) -> None:
        """The hub answered, or refused."""
        if event.number == self._pending:
            self._answer = event if isinstance(event, ProbeAnswered) else None
            self.on_void()

    def on_void(self) -> None:
        """The connection is gone: the probe in progress gets no answer."""
        self._pending = None
        self._changed.notify_all()
