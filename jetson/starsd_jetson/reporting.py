"""What a target tells the hub's monitor of itself: sums over its rounds, at most once a second."""

from __future__ import annotations

from collections.abc import Callable

from starsd_edge.planning.pass_times import RecentTimes
from starsd_edge.protocol.codes import IDLE
from starsd_edge.protocol.messages import MAX_PASS_US, MAX_WIDTHS, Report
from starsd_edge.telemetry.rounds import HUB, NONE, Round

REPORT_S = 1.0
"""Least seconds between two reports."""
_FORGOTTEN = 128
"""Rounds after which a width (rows of the verify pass) that was not seen again is no longer reported. The hub takes all
that is reported for the present speed; the target's own estimate forgets later, since it may go without a plain step
for long.
"""


class Reporter:
    """Counts rounds and sends reports.

    Args:
        send: takes a report; must not block.
        clock: monotonic seconds.
    """

    def __init__(self, send: Callable[[Report], None], clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._sent_at: float | None = None
        self._rounds = self._hub_rounds = self._local_rounds = self._tokens = 0
        self._draft_s = self._plain_s = self._verify_s = self._wait_s = 0.0
        self._own_s = RecentTimes(_FORGOTTEN, MAX_WIDTHS)

    def round(self, done: Round) -> None:
        """Count a round, and report if it is time."""
        self._rounds += 1
        self._verify_s += done.verify_s
        self._wait_s += done.wait_s
        self._own_s.add(done.drafted + 1, done.round_s - done.wait_s)
        if done.origin == NONE:
            self._plain_s += done.round_s
        else:
            self._hub_rounds += done.origin == HUB
            self._local_rounds += done.origin != HUB
            self._tokens += done.emitted
            self._draft_s += done.round_s
        now = self._clock()
        if self._sent_at is None or now - self._sent_at >= REPORT_S:
            self._report(done.why_off, now)

    def idle(self) -> None:
        """All answers are over."""
        self._report(IDLE, self._clock())

    def _report(self, why_off: str, now: float) -> None:
        self._sent_at = now
        own_s = self._own_s.medians()
        self._send(
            Report(
                rounds=self._rounds,
                hub_rounds=self._hub_rounds,
                local_rounds=self._local_rounds,
                tokens=self._tokens,
                draft_us=round(self._draft_s * 1e6),
                plain_us=round(self._plain_s * 1e6),
                verify_us=round(self._verify_s * 1e6),
                wait_us=round(self._wait_s * 1e6),
                why_off=why_off,
                pass_rows=list(own_s),
                pass_us=[min(max(1, round(seconds * 1e6)), MAX_PASS_US) for seconds in own_s.values()],
            )
        )
