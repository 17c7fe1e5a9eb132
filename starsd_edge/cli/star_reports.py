"""What a replayed target tells the hub of itself, as `run-target` does: of all its sessions together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from starsd_edge.telemetry.rounds import Round

if TYPE_CHECKING:
    from starsd_edge.protocol.messages import Report


class TargetReports:
    """One target's; for the decode loops of all its sessions, each on its thread.

    Args:
        send: takes a report; must not block.
        clock: monotonic seconds.
    """

    def __init__(self, send: Callable[[Report], None], clock: Callable[[], float]) -> None:
        from starsd_jetson.reporting import Reporter

        self._lock = threading.Lock()
        self._why_off = ""
        self._reporter = Reporter(send, lambda: self._why_off, clock)

    def round(self, done: Round) -> None:
        """Count a round, and report if it is time."""
        with self._lock:
            self._why_off = done.why_off
            self._reporter.round(done)
