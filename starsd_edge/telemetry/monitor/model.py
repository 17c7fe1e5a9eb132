"""Snapshots of a hub, folded one by one into the board that is shown.

Pure: time is the hub's own uptime, as the snapshots tell it. Rates are differences over the last seconds, so a lost
snapshot costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from starsd_edge.protocol.codec import printable
from starsd_edge.protocol.codes import CLAMPED
from starsd_edge.telemetry.feed import Event, Snapshot
from starsd_edge.telemetry.hub_facts import DrafterFacts, HubFacts, Judgement, TargetFacts, TargetReport
from starsd_edge.telemetry.monitor.board import (
    FAILING,
    ON,
    WARMING,
    Acceptance,
    DrafterRow,
    HubRow,
    Spoken,
    StarBoard,
    TargetRow,
)

WINDOW_S = 10.0
"""Seconds over which rates and shares are taken."""
HISTORY = 240
"""Number of round-trip times that are kept of a target."""
MAX_EVENTS_KEPT = 200
RESTARTED = "restarted"

Facts = TypeVar("Facts")


class MonitorModel:
    """What was seen of one hub so far."""

    def __init__(self) -> None:
        self._hub_id: str | None = None
        self._hub: _Trail[HubFacts] = _Trail()
        self._acceptance = Acceptance()
        self._targets: dict[str, _TargetTrail] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS_KEPT)
        self._last_event = 0

    def take(self, snapshot: Snapshot) -> StarBoard:
        """Take in what the hub said; what to show now."""
        facts = snapshot.facts
        if self._hub.is_older_than(facts.uptime_s) or self._hub_id not in (None, facts.hub_id):
            self._begin_anew(facts)
        self._hub_id = facts.hub_id
        self._take_events(snapshot.events)
        before = self._hub.add(facts.uptime_s, facts)
        self._acceptance = _acceptance(before.drafted, facts.drafted, self._acceptance)
        drafters = {drafter.kind: drafter for drafter in facts.drafters}
        trails = {_key(target): self._targets.get(_key(target), _TargetTrail()) for target in facts.targets}
        self._targets = trails
        rows = [
            trails[_key(target)].take(target, facts.uptime_s, drafters.get(target.drafter)) for target in facts.targets
        ]
        return StarBoard(_hub_row(before, facts, self._acceptance), tuple(rows), tuple(self._events))

    def _begin_anew(self, facts: HubFacts) -> None:
        self._hub = _Trail()
        self._acceptance = Acceptance()
        self._targets = {}
        self._last_event = 0
        self._events.append(Event(0, facts.uptime_s, RESTARTED, "", "the hub is another instance now"))

    def _take_events(self, events: list[Event]) -> None:
        for event in events:
            if event.number > self._last_event:
                self._last_event = event.number
                self._events.append(
                    replace(
                        event, kind=printable(event.kind), target=printable(event.target), text=printable(event.text)
                    )
                )


class _Trail(Generic[Facts]):
    """What was said in the last seconds."""

    def __init__(self) -> None:
        self._said: deque[tuple[float, Facts]] = deque()

    def add(self, at_s: float, facts: Facts) -> Facts:
        """Take in what is said now; the oldest that still counts."""
        self._said.append((at_s, facts))
        while len(self._said) > 2 and self._said[1][0] <= at_s - WINDOW_S:
            self._said.popleft()
        return self._said[0][1]

    def is_older_than(self, at_s: float) -> bool:
        """Whether time has run backwards since."""
        return bool(self._said) and at_s < self._said[-1][0]


class _TargetTrail:
    def __init__(self) -> None:
        self._said: _Trail[TargetFacts] = _Trail()
        self._rtt: deque[float] = deque(maxlen=HISTORY)
        self._acceptance = Acceptance()
        self._spoken = Spoken()

    def take(self, facts: TargetFacts, at_s: float, drafter: DrafterFacts | None) -> TargetRow:
        before = self._said.add(at_s, facts)
        if facts.rtt_ms is not None:
            self._rtt.append(facts.rtt_ms)
        self._acceptance = _acceptance(before.drafted, facts.drafted, self._acceptance)
        if facts.report is not None:
            self._spoken = _spoken(before.report or TargetReport(), facts.report, self._spoken)
        rate = _rates(before.connected_s, facts.connected_s)
        return TargetRow(
            key=_key(facts),
            name=printable(facts.target) or "?",
            address=printable(facts.address),
            drafter=printable(facts.drafter),
            connected_s=facts.connected_s,
            sessions=facts.sessions,
            rtt_ms=facts.rtt_ms,
            min_rtt_ms=facts.min_rtt_ms,
            rtt_history=tuple(self._rtt),
            queue_ms_p50=facts.queue_ms_p50,
            queue_ms_p99=facts.queue_ms_p99,
            drafts_per_s=rate(before.drafted.drafts, facts.drafted.drafts),
            bytes_up_per_s=rate(before.bytes_in, facts.bytes_in),
            bytes_down_per_s=rate(before.bytes_out, facts.bytes_out),
            acceptance=self._acceptance,
            spoken=self._spoken,
            state=_state(before, facts, drafter),
            port=facts.port,
            latency=facts.latency,
            shape=facts.shape,
        )


def _key(target: TargetFacts) -> str:
    """Connections have numbers; `/metrics` knows names only."""
    return f"#{target.number}" if target.number else target.target


def _state(before: TargetFacts, facts: TargetFacts, drafter: DrafterFacts | None) -> str:
    if drafter is not None and not drafter.warm:
        return WARMING
    if drafter is not None and drafter.failing:
        return FAILING
    if facts.report is not None:
        clamped_before = 0 if before.report is None else before.report.clamped_rows
        weak = CLAMPED if facts.report.clamped_rows > clamped_before else ON
        return printable(facts.report.why_off) or weak
    return ON if facts.drafted.drafts > before.drafted.drafts else "idle"


def _hub_row(before: HubFacts, facts: HubFacts, acceptance: Acceptance) -> HubRow:
    rate = _rates(before.uptime_s, facts.uptime_s)
    total_s = facts.time.total_s - before.time.total_s
    drafts = _sum(facts, lambda drafter: drafter.drafts) - _sum(before, lambda drafter: drafter.drafts)
    passes = _sum(facts, lambda drafter: drafter.passes) - _sum(before, lambda drafter: drafter.passes)
    times = facts.draft_times
    return HubRow(
        hub_id=printable(facts.hub_id),
        version=printable(facts.version),
        uptime_s=facts.uptime_s,
        ready=facts.ready,
        drafters=tuple(_drafter_row(drafter) for drafter in facts.drafters),
        sessions=facts.sessions,
        sessions_away=facts.sessions_away,
        busy=_share(facts.time.busy_s - before.time.busy_s, total_s) or 0.0,
        idle=_share(facts.time.idle_s - before.time.idle_s, total_s) or 0.0,
        lag=_share(facts.time.lag_s - before.time.lag_s, total_s) or 0.0,
        queue_requests=facts.queue.requests,
        queue_rows=facts.queue.rows,
        batch=_share(drafts, passes),
        drafts_per_s=rate(0, max(0, drafts)),
        bytes_up_per_s=rate(before.bytes_up, facts.bytes_up),
        bytes_down_per_s=rate(before.bytes_down, facts.bytes_down),
        queue_ms_p50=times.queue_ms_p50,
        queue_ms_p99=times.queue_ms_p99,
        draft_ms_p50=times.service_ms_p50,
        draft_ms_p99=times.service_ms_p99,
        acceptance=acceptance,
        auth_failures=facts.auth_failures,
        turned_away=facts.turned_away,
        last_batch=facts.batches.last,
        policy=printable(facts.policy_in_use),
    )


def _drafter_row(drafter: DrafterFacts) -> DrafterRow:
    state = FAILING if drafter.failing else "warm" if drafter.warm else WARMING
    return DrafterRow(printable(drafter.kind), state, drafter.sessions, drafter.failures, printable(drafter.last_error))


def _acceptance(before: Judgement, now: Judgement, known: Acceptance) -> Acceptance:
    """Of the drafts between two moments; what was known where there were none."""
    if now.judged > before.judged:
        accepted = _share(now.accepted - before.accepted, now.judged - before.judged)
        survival = tuple(
            _share(hits - _at(before.level_hits, level), trials - _at(before.level_trials, level)) or 0.0
            for level, (hits, trials) in enumerate(zip(now.level_hits, now.level_trials, strict=False))
            if trials > _at(before.level_trials, level)
        )
        known = replace(known, accepted_per_draft=accepted, survival=survival)
    if now.drafts > before.drafts:
        known = replace(known, nodes_per_draft=_share(now.nodes - before.nodes, now.drafts - before.drafts))
    return known


def _spoken(before: TargetReport, now: TargetReport, known: Spoken) -> Spoken:
    """Of the rounds between two reports; what was known where there were none of a kind."""
    rounds = now.rounds - before.rounds
    drafted = now.hub_rounds + now.local_rounds - before.hub_rounds - before.local_rounds
    if rounds <= 0:
        return known
    return Spoken(
        tokens_per_s=_share(1e6 * (now.tokens - before.tokens), now.draft_us - before.draft_us) or known.tokens_per_s,
        plain_tokens_per_s=_share(1e6 * (rounds - drafted), now.plain_us - before.plain_us) or known.plain_tokens_per_s,
        verify_ms=_share((now.verify_us - before.verify_us) / 1e3, rounds),
        wait_ms=_share((now.wait_us - before.wait_us) / 1e3, rounds),
        hub_share=_share(now.hub_rounds - before.hub_rounds, rounds),
        local_share=_share(now.local_rounds - before.local_rounds, rounds),
    )


def _rates(before_s: float, now_s: float) -> Callable[[float, float], float]:
    """What turns two sums into a rate."""
    seconds = now_s - before_s
    return lambda before, now: max(0.0, (now - before) / seconds) if seconds > 0 else 0.0


def _share(part: float, whole: float) -> float | None:
    return max(0.0, part / whole) if whole > 0 else None


def _at(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else 0


def _sum(facts: HubFacts, count: Callable[[DrafterFacts], int]) -> int:
    return sum(count(drafter) for drafter in facts.drafters)
