"""What a hub knows of itself, as data. `/status` shows it as JSON, `/metrics` for Prometheus; both are only formats."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starsd_server.draft_queue import QueueDepth
from starsd_server.utilisation import TimeUse

RECENT_DRAFTS = 512
RECENT_USE_S = 10


@dataclass(frozen=True)
class DrafterFacts:
    """One drafter: see `worker.DrafterHealth` for the counters."""

    kind: str
    fingerprint: str
    warm: bool
    failing: bool
    sessions: int
    drafts: int
    draft_tokens: int
    rows: int
    failures: int
    failures_in_a_row: int
    refusals: int
    last_error: str


@dataclass(frozen=True)
class TargetFacts:
    """One connected target.

    Attributes:
        target: the name it gave itself, "" before HELLO.
        drafter: what it was offered, "" before HELLO.
        rtt_ms: smoothed round-trip time of the connection as the kernel measures it; None where it does not tell.
        min_rtt_ms: the least of late.
    """

    target: str
    address: str
    drafter: str
    connected_s: float
    sessions: int
    rtt_ms: float | None
    min_rtt_ms: float | None
    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class DraftTimes:
    """Of the last drafts: time in `Q_in` and in the drafter (S), milliseconds."""

    drafts: int
    queue_ms_p50: float
    queue_ms_p99: float
    service_ms_p50: float
    service_ms_p99: float


@dataclass(frozen=True)
class HubFacts:
    """One hub.

    Attributes:
        ready: every drafter is warm and works.
        sessions: held, those of `sessions_away` included.
        sessions_away: whose target has lost its connection and may come back.
        time: of the drafting thread, since the start.
        busy_ratio: its share of busy time of late.
        dropped: frames and drafts not acted on, by reason.
        auth_failures: connections with no token or a wrong one.
        turned_away: connections refused because the hub was full.
    """

    hub_id: str
    version: str
    uptime_s: float
    ready: bool
    drafters: list[DrafterFacts]
    targets: list[TargetFacts]
    sessions: int
    sessions_away: int
    queue: QueueDepth
    time: TimeUse
    busy_ratio: float
    draft_times: DraftTimes
    bytes_up: int
    bytes_down: int
    dropped: dict[str, int]
    auth_failures: int
    turned_away: int


class RecentTimes:
    """Durations of the last drafts."""

    def __init__(self) -> None:
        self._queue_us: deque[int] = deque(maxlen=RECENT_DRAFTS)
        self._service_us: deque[int] = deque(maxlen=RECENT_DRAFTS)

    def add(self, queue_us: int, service_us: int) -> None:
        """Take in one draft."""
        self._queue_us.append(queue_us)
        self._service_us.append(service_us)

    def summary(self) -> DraftTimes:
        """Their percentiles."""
        return DraftTimes(len(self._queue_us), *_percentiles_ms(self._queue_us), *_percentiles_ms(self._service_us))


def _percentiles_ms(durations_us: Sequence[int]) -> tuple[float, float]:
    if not durations_us:
        return 0.0, 0.0
    middle, high = np.percentile(np.fromiter(durations_us, dtype=np.float64), [50, 99]) / 1e3
    return round(float(middle), 3), round(float(high), 3)


class RecentUse:
    """Share of busy time over the last `RECENT_USE_S` samples, one a second."""

    def __init__(self) -> None:
        self._samples: deque[TimeUse] = deque([TimeUse()], maxlen=RECENT_USE_S + 1)

    def add(self, use: TimeUse) -> None:
        """Take in the books of this second."""
        self._samples.append(use)

    def busy_ratio(self, use: TimeUse) -> float:
        """From the oldest sample to `use`, the books of now."""
        oldest = self._samples[0]
        total = use.total_s - oldest.total_s
        return round((use.busy_s - oldest.busy_s) / total, 4) if total > 0 else 0.0
