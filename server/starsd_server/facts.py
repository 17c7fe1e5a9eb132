"""Facts for the monitor: durations of the last drafts, share of busy time, events, names of targets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import msgspec

from starsd_edge.protocol.counters import DraftRecord
from starsd_edge.protocol.hub_side import HubConnection
from starsd_edge.telemetry.feed import MAX_EVENTS, Event
from starsd_edge.telemetry.hub_facts import (
    DrafterFacts,
    Judgement,
    LatencyFacts,
    RecentDrafts,
    ServiceFacts,
    ShapeFacts,
    TargetFacts,
    TargetReport,
    TimeUse,
)
from starsd_edge.telemetry.latency import Latency
from starsd_edge.telemetry.rtt import TrackedDuration
from starsd_server.drafter_pool import DrafterHealth
from starsd_server.drafters.contract import Drafter
from starsd_server.peer import Peer

RECENT_DRAFTS = 512
"""Number of last drafts whose durations are kept; enough for a 99th percentile."""
RECENT_USE_S = 10
"""Seconds over which the share of busy time is taken; one sample a second."""
MAX_SHARED_NAMES = 256
"""Most names that are remembered as seen at two hosts. Targets choose their names, so the number must be bounded."""


class RecentTimes:
    """Durations of the last drafts."""

    def __init__(self) -> None:
        self._queue_us: deque[int] = deque(maxlen=RECENT_DRAFTS)
        self._service_us: deque[int] = deque(maxlen=RECENT_DRAFTS)

    def add(self, queue_us: int, service_us: int) -> None:
        """Take in one draft."""
        self._queue_us.append(queue_us)
        self._service_us.append(service_us)

    def summary(self) -> RecentDrafts:
        """Percentiles of the last drafts' durations."""
        return RecentDrafts(len(self._queue_us), *percentiles_ms(self._queue_us), *percentiles_ms(self._service_us))


def percentiles_ms(durations_us: Iterable[int]) -> tuple[float, float]:
    """The median and the 99th percentile (nearest rank). Sorting a few hundred numbers is cheaper than asking numpy,
    and it is done for every target of every snapshot.
    """
    ordered = sorted(durations_us)
    if not ordered:
        return 0.0, 0.0
    return ordered[(len(ordered) - 1) // 2] / 1e3, ordered[(len(ordered) * 99 - 1) // 100] / 1e3


class RecentUse:
    """Share of busy time over the last `RECENT_USE_S` samples, one a second."""

    def __init__(self) -> None:
        self._samples: deque[TimeUse] = deque([TimeUse()], maxlen=RECENT_USE_S + 1)

    def add(self, use: TimeUse) -> None:
        """Take in the time sums of the drafting thread at this second."""
        self._samples.append(use)

    def busy_ratio(self, use: TimeUse) -> float:
        """Share of busy time from the oldest sample to `use`, the present sums."""
        oldest = self._samples[0]
        total = use.total_s - oldest.total_s
        return round((use.busy_s - oldest.busy_s) / total, 4) if total > 0 else 0.0


class EventLog:
    """The last events of a hub.

    Args:
        uptime_s: seconds since the hub began.
    """

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._last = 0

    def add(self, kind: str, target: str = "", text: str = "") -> None:
        """Append an event."""
        self._last += 1
        self._events.append(Event(self._last, round(self._uptime_s(), 3), kind, target, text))

    def recent(self) -> list[Event]:
        """The last ones, oldest first."""
        return list(self._events)


class TargetNames:
    """What targets are called on pages, in events and in the log: what they call themselves, while that tells them
    apart.

    A name seen at two hosts at once goes with the host from then on, so that a series stays that of one device whoever
    else comes and goes; those of one name and host are counted.
    """

    def __init__(self) -> None:
        self._shared: dict[str, None] = {}

    def shown(self, targets: Sequence[tuple[str, str]]) -> list[str]:
        """Names, no two alike but those of targets that have not yet said theirs ("").

        Args:
            targets: what each calls itself, and its host.
        """
        hosts: dict[str, set[str]] = {}
        for name, host in targets:
            hosts.setdefault(name, set()).add(host)
        self._shared.update((name, None) for name, places in hosts.items() if len(places) > 1)
        while len(self._shared) > MAX_SHARED_NAMES:
            del self._shared[next(iter(self._shared))]
        counts: Counter[str] = Counter()
        taken: set[str] = set()
        shown_names: list[str] = []
        for name, host in targets:
            if not name:
                shown_names.append(name)
                continue
            usual = f"{name}@{host}" if name in self._shared else name
            counts[usual] += 1
            shown = usual if counts[usual] == 1 else f"{usual} ({counts[usual]})"
            while shown in taken:  # a target has called itself just so
                counts[usual] += 1
                shown = f"{usual} ({counts[usual]})"
            taken.add(shown)
            shown_names.append(shown)
        return shown_names


def judgement(record: DraftRecord) -> Judgement:
    """The draft and acceptance counts of a record, for the monitor."""
    return Judgement(
        record.drafts,
        record.nodes,
        record.judged,
        record.accepted,
        list(record.level_trials),
        list(record.level_hits),
    )


def drafter_facts(drafter: Drafter, health: DrafterHealth, service: ServiceFacts) -> DrafterFacts:
    """One drafter of the hub; `service`: what its passes cost."""
    return DrafterFacts(fingerprint=drafter.fingerprint, failing=health.failing, service=service, **asdict(health))


def latency_facts(latency: Latency) -> LatencyFacts:
    """What was observed of a target's rounds."""
    returns, link, verify = latency.returns, latency.link, latency.verify
    return LatencyFacts(
        _level_ms(returns),
        _ms(returns.deviation_s),
        _level_ms(link),
        _ms(link.deviation_s),
        _level_ms(verify),
        _ms(verify.deviation_s),
        latency.path.degraded,
        _ms(latency.path.usual_s),
        (link if link.samples else returns).changes,
    )


def _level_ms(duration: TrackedDuration) -> float | None:
    return _ms(duration.smoothed_s) if duration.samples else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def target_facts(
    name: str,
    peer: Peer,
    connection: HubConnection,
    sessions: int,
    latency: Latency,
    shape: ShapeFacts,
    now: float,
) -> TargetFacts:
    """One connected target.

    Args:
        name: told apart from those of the others.
        sessions: number of sessions that it holds now.
        latency: durations of its rounds.
        shape: shape of its drafts.
        now: seconds on the clock of `peer.connected_at`.
    """
    terms, traffic, report = connection.terms, peer.traffic, connection.report
    queue_ms_p50, queue_ms_p99 = percentiles_ms(connection.record.waits_us)
    return TargetFacts(
        target=name,
        address=peer.address,
        drafter="" if terms is None else terms.drafter,
        connected_s=round(now - peer.connected_at, 3),
        sessions=sessions,
        rtt_ms=None if traffic.rtt is None else round(traffic.rtt.rtt_s * 1e3, 3),
        min_rtt_ms=None if traffic.rtt is None else round(traffic.rtt.min_rtt_s * 1e3, 3),
        frames_in=traffic.frames_in,
        frames_out=traffic.frames_out,
        bytes_in=traffic.bytes_in,
        bytes_out=traffic.bytes_out,
        number=peer.number,
        queue_ms_p50=queue_ms_p50,
        queue_ms_p99=queue_ms_p99,
        drafted=judgement(connection.record),
        port=peer.port,
        report=None if report is None else TargetReport(**msgspec.structs.asdict(report)),
        latency=latency_facts(latency),
        shape=shape,
    )
