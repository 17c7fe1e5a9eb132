"""How the drafting thread spends its time.

All of its time belongs to one of three states: *busy* in a drafter, *idle* while there was no work, and *lag*, while
work waited and no drafter ran (waking up, taking work, handing results back). A work-conserving hub has almost no lag.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from starsd_edge.telemetry.hub_facts import TimeUse


@dataclass(frozen=True)
class _Ledger:
    use: TimeUse
    marked_at: float
    working: bool


class UseMeter:
    """Counts the time of one thread by state; `now` in seconds on a monotonic clock.

    One thread writes, others may read: the sums are one immutable object, replaced in a single assignment.
    """

    def __init__(self, now: float) -> None:
        self._ledger = _Ledger(TimeUse(), now, working=False)

    def begin_work(self, work_since: float, now: float) -> None:
        """A drafter starts: before, it was idle until `work_since`, when work came to an empty queue, and lag after."""
        ledger = self._ledger
        waited_from = min(max(work_since, ledger.marked_at), now)
        before = ledger.use
        use = TimeUse(
            busy_s=before.busy_s,
            idle_s=before.idle_s + (waited_from - ledger.marked_at),
            lag_s=before.lag_s + (now - waited_from),
        )
        self._ledger = _Ledger(use, now, working=True)

    def end_work(self, now: float) -> None:
        """The drafter has ended."""
        self._ledger = _Ledger(_with_busy(self._ledger, now), now, working=False)

    def read(self, now: float) -> TimeUse:
        """The sums up to now: work in progress counts as busy, a wait in progress as idle."""
        ledger = self._ledger
        if ledger.working:
            return _with_busy(ledger, now)
        return replace(ledger.use, idle_s=ledger.use.idle_s + max(0.0, now - ledger.marked_at))


def _with_busy(ledger: _Ledger, now: float) -> TimeUse:
    before = ledger.use
    return TimeUse(before.busy_s + max(0.0, now - ledger.marked_at), before.idle_s, before.lag_s)
