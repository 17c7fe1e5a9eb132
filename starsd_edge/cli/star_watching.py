"""What is seen of replayed targets: by the bench, of their drafts, and by the hub, of their rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from starsd_edge.bench.star_runs import DraftMark, TargetLog
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round

if TYPE_CHECKING:
    from starsd_edge.protocol.messages import Report
    from starsd_jetson.hub_drafting import Asked, DraftChannel


class WatchedChannel:
    """A `DraftChannel` that notes when drafts were asked for and what they took. Where the hub thinks that none pays it
    says so without its drafter: that is no draft, and has no S.
    """

    def __init__(self, channel: DraftChannel, log: TargetLog, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._log = log
        self._clock = clock
        self._asked_at: dict[int, float] = {}

    @property
    def pending(self) -> int | None:
        """See `DraftChannel`."""
        return self._channel.pending

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """See `DraftChannel`."""
        self._channel.append(ids, features)

    def extend(self) -> None:
        """See `DraftChannel`."""
        self._channel.extend()

    def request(self, shape: DraftShape) -> Asked | None:
        """See `DraftChannel`."""
        now = self._clock()
        asked = self._channel.request(shape)
        if asked is not None:
            self._asked_at[asked.epoch] = now
        return asked

    def wait(self, timeout_s: float) -> DraftArrived | None:
        """See `DraftChannel`."""
        arrived = self._channel.wait(timeout_s)
        if arrived is not None:
            asked_at = self._asked_at.pop(arrived.epoch, None)
            if asked_at is not None and arrived.service_us:
                self._log.drafts.append(DraftMark(asked_at, arrived.queue_us / 1e6, arrived.service_us / 1e6))
        return arrived

    def give_up(self) -> None:
        """See `DraftChannel`."""
        self._channel.give_up()

    def close(self) -> None:
        """See `DraftChannel`."""
        self._channel.close()


class TargetReports:
    """Tells the hub of a target's rounds, as `run-target` does; for the decode loops of all its sessions, each on its
    thread.

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
