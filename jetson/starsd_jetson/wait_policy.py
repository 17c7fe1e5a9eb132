"""Whether to ask the hub for a draft, how long to wait for it, and what of it to verify: a matter of tokens per second.

A wait is worth what the tree is expected to bring (by what trees brought so far) against what the same time gives
without it. Where going on plainly gives more, the target goes on, and a late tree is rebased. Where nothing of that
beats plain decoding, the hub is not asked, and tried again after growing gaps: a trial costs a message, since its tree
is judged by the text and need not be verified. Requests that are never answered halve the next wait and double the time
until the next request: a dead hub costs less than two waits, however long the answer.
"""

from __future__ import annotations

from dataclasses import replace

from starsd_edge.planning.curve import VerifyCurves
from starsd_edge.protocol.codes import EMPTY, LATE, POOR, TIMED
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB
from starsd_edge.telemetry.rtt import RttEstimator
from starsd_jetson.cost_model import DraftCostModel, ExpectedGain
from starsd_jetson.drafting import RoundDraft

MOST_WAIT_S = 1.0
"""A reader sees a pause longer than this as a stall."""
LEAST_GAIN = 1.02
KEEPING_GAIN = 0.97
"""A hub that promises less than the first, in times of plain decoding, is not asked. One that is asked and waited for
is left at the second: what is expected of it is never exact, and each change of mind costs rounds.
"""
LONGER = 0.5
"""Of the usual time, that a draft is waited for beyond what few take."""
QUEUED_GAIN = 1 / 8
SHARED = 0.3
"""Of the hub's time for a draft, the share spent in its queue from which on the hub counts as busy with others."""
FIRST_GAP = 4
MOST_GAP = 32
"""Rounds until a hub that does not pay is tried again; from the first to the most as trials fail."""
FIRST_RETRY = 8
MOST_RETRY = 64
"""Requests not waited for until one is again, where the hub was quick once; from the first to the most as retries
fail.
"""
FIRST_SILENCE_S = 1.0
MOST_SILENCE_S = 30.0
"""A request unanswered for this long is given up and another one sent; from the first to the most as they add up."""
MOST_UNANSWERED = 64
"""Waits are not halved more often than this: they are nothing by then, and powers of two outgrow a float."""


class WaitPolicy:
    """Learns from every draft, in time or late, and from every round.

    Args:
        fixed_wait_s: ask for every draft, wait for it up to this many seconds and verify all of it, whether it pays or
            not; only a silent hub is still given less and less.
        measured: see `DraftCostModel`.

    Attributes:
        payoff: of the hub's trees.
        round_trips: of requests, without those that bring a prefill.
        why_off: why the hub is not asked, but for trials: one of `reasons`; empty while it is.
    """

    def __init__(self, fixed_wait_s: float | None = None, measured: VerifyCurves | None = None) -> None:
        self._fixed_wait_s = fixed_wait_s
        self.cost_model = DraftCostModel(measured)
        self.round_trips = RttEstimator()
        self.why_off = ""
        self._rows_per_level = 1.0
        self._queued_share = 0.0
        self._hub_rate = 0.0
        self._unanswered = self._answers = 0
        self._trial = _Gap(FIRST_GAP, MOST_GAP)
        self._trying = False
        self._off_since: tuple[int, int] | None = None
        self._retry = _Gap(FIRST_RETRY, MOST_RETRY)
        self._retrying_s: float | None = None

    def answered(self, round_trip_s: float, queued_share: float = 0.0) -> None:
        """A draft came, this long after it was asked for.

        Args:
            queued_share: of the hub's time for it, what passed before the drafter began.
        """
        self._queued_share += QUEUED_GAIN * (queued_share - self._queued_share)
        before_s = self.round_trips.smoothed_s
        if self._retrying_s is not None:
            self._judge_retry(round_trip_s <= self._retrying_s)
        if self._trying:  # what was true before the gap may be so no more; a time that is worse proves little by itself
            self.round_trips = RttEstimator()
            self.round_trips.add(min(round_trip_s, (before_s + round_trip_s) / 2))
        else:
            self.round_trips.add(round_trip_s)
        self._answers += 1
        self.prefilled()

    def prefilled(self) -> None:
        """A draft came that says nothing about the time of the next: a prefill lay before it."""
        self._unanswered = 0

    def given_up(self) -> None:
        """A request got no answer at all."""
        self._unanswered = min(self._unanswered + 1, MOST_UNANSWERED)

    @property
    def is_unanswered(self) -> bool:
        """Whether a request was given up since the last draft came."""
        return self._unanswered > 0

    def wanted(self, limit: DraftShape) -> DraftShape:
        """What of a shape to ask for; see `DraftCostModel.wanted`."""
        return limit if self._fixed_wait_s is not None else self.cost_model.wanted(limit)

    def asks(self, shape: DraftShape) -> bool:
        """Whether a tree of this shape is to be asked for. Once in every round that could ask."""
        self._trying = False
        if self._fixed_wait_s is not None or not self._knows:
            return True
        if self._off_since == self._evidence:
            self._trying = self._trial.is_over()
            return self._trying
        self._off_since = None
        prospect = self._prospect(shape)
        keeps = prospect.shared and not self.why_off
        least = (KEEPING_GAIN if keeps else LEAST_GAIN) * self.cost_model.plain_tokens_per_s
        self._hub_rate = prospect.tokens_per_s(self.round_trips.smoothed_s)
        if self._hub_rate >= least:
            self.why_off = ""
            self._trial.reset()
            return True
        rate_if_right = self._rate_if_right(prospect)
        if self.cost_model.estimator.is_mostly_empty:
            self.why_off = EMPTY
        else:
            self.why_off = POOR if rate_if_right > prospect.tokens_per_s(0.0) else LATE
        if rate_if_right >= least and self.cost_model.estimator.last_came_true and not prospect.shared:
            self._trial.shorten()  # being right was all that it lacked
        else:
            self._off_since = self._evidence
        self._trying = self._trial.is_over()
        return self._trying

    def wait_s(self, shape: DraftShape, elapsed_s: float, walked: int, without: RoundDraft) -> float:
        """Seconds to wait for a tree of this shape from now on.

        Args:
            elapsed_s: since it was asked for.
            walked: tokens emitted since then.
            without: the draft of a round that does not wait.
        """
        if self._fixed_wait_s is not None:
            return float(max(0.0, self._fixed_wait_s / 2**self._unanswered - elapsed_s))
        if not self._knows or self._trying:
            return 0.0
        prospect, times = self._prospect(shape), self.round_trips
        # A shared hub's time varies with who else asks: it is given up where what is still to come cannot be worth it.
        pays_s = prospect.longest_wait_s(walked, self.rate(without)) * (2 if prospect.shared else 1)
        most = min(MOST_WAIT_S, pays_s)
        if self._pays_to_wait(prospect, max(times.smoothed_s - elapsed_s, times.deviation_s), walked, without):
            # Who has waited that long and gives up just before the draft comes has lost both.
            wait = min(times.upper_s + LONGER * times.smoothed_s - elapsed_s, most)
        elif walked == 0 and self._pays_to_wait(prospect, times.minimum_s, 0, without) and self._retry.is_over():
            self._retrying_s = wait = most
        else:
            return 0.0
        return float(max(0.0, wait) / 2**self._unanswered)

    def judge(self, tree: DraftTree, level: int = 0) -> RoundDraft:
        """A draft of what is worth verifying of a tree that came.

        Args:
            level: of its root in the tree that was asked for.
        """
        cost_model = self.cost_model
        if self._fixed_wait_s is not None:
            return RoundDraft(tree, HUB, expected=cost_model.tokens(tree, level))
        if cost_model.retimes_plain(tree, level):
            return RoundDraft(DraftTree.empty(), HUB, why_off=TIMED)
        worthy = cost_model.worth(tree, level, self._hub_rate)
        if len(worthy) == 0:
            return RoundDraft(worthy, HUB, why_off=POOR)
        self._rows_per_level = len(worthy) / worthy.depth
        return RoundDraft(worthy, HUB, expected=cost_model.tokens(worthy, level))

    def prefers(self, other: RoundDraft, to: RoundDraft) -> bool:
        """Whether another draft is worth more than the hub's."""
        return self._fixed_wait_s is None and self.rate(other) > self.rate(to)

    def rate(self, draft: RoundDraft) -> float:
        """Tokens per second of a round with this draft, which is there; 0 while no time is known."""
        seconds = float(self.cost_model.times.curve(len(draft.tree) + 1)[-1])
        return draft.expected / seconds if seconds else 0.0

    @property
    def silence_s(self) -> float:
        """Seconds after which an unanswered request is given up."""
        usual = max(FIRST_SILENCE_S, 2 * self.round_trips.upper_s, self._fixed_wait_s or 0.0)
        return float(min(usual * 2**self._unanswered, MOST_SILENCE_S))

    @property
    def _knows(self) -> bool:
        """Whether there is anything to reckon with."""
        return self.round_trips.samples > 0 and self.cost_model.times.is_known

    @property
    def _evidence(self) -> tuple[int, int]:
        """Grows with what may make a hub that does not pay one that does."""
        return self.cost_model.estimator.judged, self._answers

    def _prospect(self, shape: DraftShape) -> ExpectedGain:
        depth = min(shape.max_depth, shape.max_nodes)
        rows = 1 + min(shape.max_nodes, round(depth * self._rows_per_level))
        cost_model = self.cost_model
        shared = self._queued_share > SHARED
        return ExpectedGain(
            cost_model.estimator.reach(depth), cost_model.times.curve(rows), self._rows_per_level, shared
        )

    def _pays_to_wait(self, prospect: ExpectedGain, remaining_s: float, walked: int, without: RoundDraft) -> bool:
        if prospect.shared and walked == 0:  # who asks a busy hub waits: `asks` has weighed it
            return True
        seconds = float(self.cost_model.times.curve(len(without.tree) + 1)[-1])
        rate = max(self.cost_model.plain_tokens_per_s, self._hub_rate)
        return prospect.waits(remaining_s, walked, (without.expected, seconds), rate)

    def _rate_if_right(self, prospect: ExpectedGain) -> float:
        """Tokens per second with a hub that takes as long as this one and is always right."""
        right = replace(prospect, reach=[1.0] * len(prospect.reach))
        return right.tokens_per_s(self.round_trips.smoothed_s)

    def _judge_retry(self, in_time: bool) -> None:
        """However the hub did while it was waited for, it is judged anew, without what it took before."""
        self._retrying_s = None
        self.round_trips = RttEstimator()
        if in_time:
            self._retry.reset()


class _Gap:
    """A pause counted in calls, twice as long each time until something resets it."""

    def __init__(self, first: int, most: int) -> None:
        self._first = self._length = first
        self._most = most
        self._passed = 0

    def is_over(self) -> bool:
        """Count a call; whether it is the one after the pause, with which the next one begins."""
        self._passed += 1
        if self._passed <= self._length:
            return False
        self._passed = 0
        self._length = min(2 * self._length, self._most)
        return True

    def shorten(self) -> None:
        """The next pause is short."""
        self._length = max(1, self._length // 4)

    def reset(self) -> None:
        """The next pause is the first again."""
        self._passed, self._length = 0, self._first
