"""Measuring the link: one probe at a time, sent by the caller's thread and answered on the link's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from starsd_edge.protocol.target_side import ProbeAnswered, ProbeRefused


class Prober(Protocol):
    """The part of `TargetProtocol` that sends a probe."""

    def probe(self, payload_bytes: int, want_bytes: int) -> int | None:
        """As `TargetProtocol.probe`."""


class HubProbe:
    """The probe in progress, if any. The methods named `on_...` are the link's thread's, called with the lock held.

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
        """Send it and wait for what comes of it; None for anything but an answer in time."""
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
        """Nothing more will come of it."""
        self._pending = None
        self._changed.notify_all()
