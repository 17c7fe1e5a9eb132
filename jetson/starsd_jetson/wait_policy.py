"""The wait policy: whether to ask the hub for a draft, how long to wait for it, and what of it to verify.

All three are decided by expected tokens per second (`ExpectedGain`). How large a draft is stands in
`starsd_jetson.draft_size`.

- A wait is worth the tokens that the tree is expected to bring, by the acceptance rate so far, against the tokens that
  the same time gives without it. Where decoding on gives more, the target decodes on, and a late tree is rebased.
- Where no way of using the hub beats plain decoding, the hub is not asked. It is tried again after gaps that grow. A
  trial costs one message: its tree is judged by the text and need not be verified.
- Each request that is never answered halves the next wait and doubles the time until the next request. So a dead hub
  costs less than two waits, however long the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.pass_times import VerifyCurves
from starsd_edge.protocol.codes import EMPTY, LATE, POOR, TIMED
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB
from starsd_edge.telemetry.rtt import RttEstimator
from starsd_jetson.draft_size import DraftCostModel
from starsd_jetson.drafting import RoundDraft

MOST_WAIT_S = 1.0
"""Longest wait for a draft, in seconds. A reader sees a longer pause as a stall."""
LEAST_GAIN = 1.02
"""Least expected gain, as a multiple of the rate of plain decoding, with which a hub is asked. Slightly above 1,
because the estimate is never exact.
"""
KEEPING_GAIN = 0.97
"""Least expected gain with which a shared hub that is asked already is kept, as a multiple of the rate of plain
decoding. It is below `LEAST_GAIN` because the estimate is never exact, and each change between asking and not asking
costs rounds.
"""
LONGER = 0.5
"""Extra wait as a share of the smoothed round-trip time, on top of the time that few round trips exceed. A target that
has waited that long and gives up just before the draft comes has lost both.
"""
QUEUED_GAIN = 1 / 8
"""Weight of the newest draft in the average of the queue's share of the hub's time: about the last eight count."""
SHARED = 0.3
"""Average share of the hub's time for a draft that is spent in its queue from which on the hub counts as shared: it is
busy with other targets.
"""
FIRST_GAP = 4
"""Rounds until a hub that does not pay is tried for the first time; the gap doubles with each trial that fails."""
MOST_GAP = 32
"""Most rounds between two trials of a hub that does not pay."""
FIRST_RETRY = 8
"""Requests that are not waited for before one is again, where the hub's least round-trip time would pay; doubled with
each such wait that fails.
"""
MOST_RETRY = 64
"""Most requests that are not waited for before one is again."""
FIRST_SILENCE_S = 1.0
"""Least seconds after which an unanswered request is given up and another one is sent; doubled with each request in a
row that gets no answer.
"""
MOST_SILENCE_S = 30.0
"""Most seconds after which an unanswered request is given up."""
MOST_UNANSWERED = 64
"""Most unanswered requests that are counted, each of which halves the wait: by then it is practically 0, and larger
powers of two would overflow a float.
"""


@dataclass(frozen=True)
class ExpectedGain:
    """Expected tokens and seconds of the ways to use a requested draft.

    Attributes:
        reach: for levels 0, 1 ..., the probability that the text follows the tree down to that level.
        curve: float64, seconds of rounds of 1, 2 ... rows, for all rows of the tree.
        rows_per_level: mean number of nodes in each level of a tree.
        shared: other targets wait for the hub's time. Decoding on while a draft is on its way may then still be best
            for this target, but so little is left of late trees that all targets together would lose by it.
    """

    reach: Sequence[float]
    curve: npt.NDArray[np.float64]
    rows_per_level: float
    shared: bool = False

    def ways(self, remaining_s: float, walked: int = 0) -> list[list[tuple[float, float]]]:
        """Expected (tokens, seconds) of each way to go on until a draft that comes in `remaining_s` is verified.

        Way k takes k plain steps, waits if the draft is still not there, and verifies what is left of it below the
        tokens emitted meanwhile. It has one entry for each level down to which the tree may be verified. The
        probability that nothing is left is included. On a shared hub there is only way 0, which waits at once.

        Args:
            remaining_s: seconds until the draft comes.
            walked: tokens emitted since the request.
        """
        plain_s = float(self.curve[0])
        last = len(self.reach) - 1
        ways: list[list[tuple[float, float]]] = []
        for steps in range(min(1, last - walked) if self.shared else last - walked):
            waited_s = max(remaining_s, steps * plain_s)
            alive = self.reach[walked + steps]
            tokens = steps + alive
            way: list[tuple[float, float]] = []
            for level in range(walked + steps + 1, last + 1):
                tokens += self.reach[level]
                rows = 1 + round((level - walked - steps) * self.rows_per_level)
                verify_s = float(self.curve[min(rows, len(self.curve)) - 1])
                way.append((tokens, waited_s + alive * verify_s))
            ways.append(way)
        return ways

    def tokens_per_s(self, remaining_s: float) -> float:
        """Tokens per second of the best way (see `ways`); 0 where there is none."""
        return max((tokens / s for way in self.ways(remaining_s) for tokens, s in way), default=0.0)

    def waits(self, remaining_s: float, walked: int, without: tuple[float, float], tokens_per_s: float) -> bool:
        """Whether to wait for the draft now is better than all other ways and than a round without it.

        Args:
            remaining_s: seconds until the draft comes.
            walked: tokens emitted since the request.
            without: expected tokens and seconds of a round that does not wait.
            tokens_per_s: tokens that a second of the target's time gives otherwise; each way is charged for its time
                at this rate.
        """
        ways = self.ways(remaining_s, walked)
        nets = [max(tokens - tokens_per_s * seconds for tokens, seconds in way) for way in [*ways, [without]]]
        return bool(ways) and nets[0] >= max(nets)

    def longest_wait_s(self, walked: int, tokens_per_s: float) -> float:
        """Seconds after which a wait has cost more tokens, at this rate, than the draft is expected to bring.

        Args:
            walked: tokens emitted since the request.
            tokens_per_s: tokens per second of a round that does not wait.
        """
        ways = self.ways(0.0, walked)
        if not ways:
            return 0.0
        return max(0.0, max(tokens / tokens_per_s - seconds for tokens, seconds in ways[0]))


class WaitPolicy:
    """The wait policy of one target for one hub. It learns from every draft, in time or late, and from every round.

    Args:
        fixed_wait_s: ask for every draft, wait for it up to this many seconds and verify all of it, whether it pays or
            not. Only the wait for a hub that does not answer is still halved each time.
        measured: times of verify passes; see `DraftCostModel`.

    Attributes:
        cost_model: the cost model of the hub's trees.
        round_trips: times from request to draft, except those of requests that a prefill preceded.
        why_off: why the hub is asked for trials only: a reason of `starsd_edge.protocol.codes`; empty while it is asked
            always.
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
            round_trip_s: seconds from the request to the draft.
            queued_share: share of the hub's time for it that passed before the drafter began, from 0 to 1.
        """
        self._queued_share += QUEUED_GAIN * (queued_share - self._queued_share)
        before_s = self.round_trips.smoothed_s
        if self._retrying_s is not None:
            self._judge_retry(round_trip_s <= self._retrying_s)
        if self._trying:  # the times from before the gap may be out of date; one longer time by itself proves little
            self.round_trips = RttEstimator()
            self.round_trips.add(min(round_trip_s, (before_s + round_trip_s) / 2))
        else:
            self.round_trips.add(round_trip_s)
        self._answers += 1
        self.prefilled()

    def prefilled(self) -> None:
        """A draft came whose round-trip time is not counted, because the hub ran a prefill before it."""
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

    def asks(self, shape: DraftShape, others: int = 0) -> bool:
        """Whether to ask for a tree of this shape. Call it once in every round that could ask: calls are counted.

        Args:
            others: answers that use the device during a wait; see `idle_s`.
        """
        self._trying = False
        if self._fixed_wait_s is not None or not self._knows:
            return True
        if self._off_since == self._evidence:  # nothing was learnt since the verdict that the hub does not pay
            self._trying = self._trial.is_over()
            return self._trying
        self._off_since = None
        gain = self._expected_gain(shape)
        keeps = gain.shared and not self.why_off
        least = (KEEPING_GAIN if keeps else LEAST_GAIN) * self.cost_model.plain_tokens_per_s
        self._hub_rate = gain.tokens_per_s(self.idle_s(self.round_trips.smoothed_s, others))
        if self._hub_rate >= least:
            self.why_off = ""
            self._trial.reset()
            return True
        rate_if_right = self._rate_if_right(gain, others)
        if self.cost_model.estimator.is_mostly_empty:
            self.why_off = EMPTY
        else:
            self.why_off = POOR if rate_if_right > gain.tokens_per_s(0.0) else LATE
        if rate_if_right >= least and self.cost_model.estimator.last_came_true and not gain.shared:
            self._trial.shorten()  # a better acceptance rate was all that it lacked
        else:
            self._off_since = self._evidence
        self._trying = self._trial.is_over()
        return self._trying

    def idle_s(self, wait_s: float, others: int) -> float:
        """Seconds for which the device has nothing to do because an answer waits so long for its draft.

        Meanwhile the device runs a round of each of the other answers. What is left is idle time of all: each of them
        waits in its turn, so that of a wait's idle time only this answer's share counts.

        Args:
            wait_s: seconds of the wait.
            others: answers that use the device during it.
        """
        return max(0.0, wait_s - others * self.cost_model.times.plain_s) / (1 + others)

    def wait_s(self, shape: DraftShape, elapsed_s: float, walked: int, without: RoundDraft, others: int = 0) -> float:
        """Seconds to wait for a tree of this shape from now on.

        Args:
            shape: the shape that was asked for.
            elapsed_s: seconds since it was asked for.
            walked: tokens emitted since then.
            without: the draft of a round that does not wait.
            others: answers that use the device during the wait; see `idle_s`.
        """
        if self._fixed_wait_s is not None:
            return float(max(0.0, self._fixed_wait_s / 2**self._unanswered - elapsed_s))
        if not self._knows or self._trying:
            return 0.0
        gain, times = self._expected_gain(shape), self.round_trips
        # A shared hub's time varies with the other targets: the wait ends only where the draft can no longer pay.
        pays_s = gain.longest_wait_s(walked, self.rate(without)) * (2 if gain.shared else 1)
        most = min(MOST_WAIT_S, pays_s * (1 + others) + others * self.cost_model.times.plain_s)
        remaining_s = max(times.smoothed_s - elapsed_s, times.deviation_s)
        if self._pays_to_wait(gain, self.idle_s(remaining_s, others), walked, without):
            # A target that waits that long and gives up just before the draft comes has lost both.
            wait = min(times.upper_s + LONGER * times.smoothed_s - elapsed_s, most)
        elif walked == 0 and self._pays_at_best(gain, without, others) and self._retry.is_over():
            self._retrying_s = wait = most
        else:
            return 0.0
        return float(max(0.0, wait) / 2**self._unanswered)

    def judge(self, tree: DraftTree, level: int = 0) -> RoundDraft:
        """The part of a hub's tree that is worth verifying, as a round's draft; perhaps empty, then with the reason.

        Args:
            tree: the tree, or what is left of a late one below the present root.
            level: level of its root in the tree that was asked for; 0 unless the draft came late.
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
        """Whether another draft gives more tokens per second than the hub's; never with a fixed wait."""
        return self._fixed_wait_s is None and self.rate(other) > self.rate(to)

    def rate(self, draft: RoundDraft) -> float:
        """Expected tokens per second of a round with this draft, without any wait; 0 while no time is known."""
        seconds = float(self.cost_model.times.curve(len(draft.tree) + 1)[-1])
        return draft.expected / seconds if seconds else 0.0

    @property
    def silence_s(self) -> float:
        """Seconds after which an unanswered request is given up."""
        usual = max(FIRST_SILENCE_S, 2 * self.round_trips.upper_s, self._fixed_wait_s or 0.0)
        return float(min(usual * 2**self._unanswered, MOST_SILENCE_S))

    @property
    def _knows(self) -> bool:
        """Whether both a round-trip time and a time of a round are known, without which no rate can be computed."""
        return self.round_trips.samples > 0 and self.cost_model.times.is_known

    @property
    def _evidence(self) -> tuple[int, int]:
        """Counts of judged levels and of answers. When one grows, the verdict that the hub does not pay is
        reconsidered.
        """
        return self.cost_model.estimator.judged, self._answers

    def _expected_gain(self, shape: DraftShape) -> ExpectedGain:
        depth = min(shape.max_depth, shape.max_nodes)
        rows = 1 + min(shape.max_nodes, round(depth * self._rows_per_level))
        cost_model = self.cost_model
        shared = self._queued_share > SHARED
        return ExpectedGain(
            cost_model.estimator.reach(depth), cost_model.times.curve(rows), self._rows_per_level, shared
        )

    def _pays_to_wait(self, gain: ExpectedGain, remaining_s: float, walked: int, without: RoundDraft) -> bool:
        if gain.shared and walked == 0:  # a shared hub that is asked is waited for: `asks` has decided that
            return True
        seconds = float(self.cost_model.times.curve(len(without.tree) + 1)[-1])
        rate = max(self.cost_model.plain_tokens_per_s, self._hub_rate)
        return gain.waits(remaining_s, walked, (without.expected, seconds), rate)

    def _pays_at_best(self, gain: ExpectedGain, without: RoundDraft, others: int) -> bool:
        """Whether to wait pays if the draft takes no longer than the fastest so far."""
        return self._pays_to_wait(gain, self.idle_s(self.round_trips.minimum_s, others), 0, without)

    def _rate_if_right(self, gain: ExpectedGain, others: int) -> float:
        """Tokens per second with a hub that takes as long as this one and whose draft tokens are all accepted."""
        right = replace(gain, reach=[1.0] * len(gain.reach))
        return right.tokens_per_s(self.idle_s(self.round_trips.smoothed_s, others))

    def _judge_retry(self, in_time: bool) -> None:
        """A draft that was waited for in a retry came: whether in time or not, the round-trip times are learnt anew."""
        self._retrying_s = None
        self.round_trips = RttEstimator()
        if in_time:
            self._retry.reset()


class _Gap:
    """A pause counted in calls. It doubles each time, up to `most` calls, until it is reset."""

    def __init__(self, first: int, most: int) -> None:
        self._first = self._length = first
        self._most = most
        self._passed = 0

    def is_over(self) -> bool:
        """Count a call. True for the first call after the pause; the next pause begins with it."""
        self._passed += 1
        if self._passed <= self._length:
            return False
        self._passed = 0
        self._length = min(2 * self._length, self._most)
        return True

    def shorten(self) -> None:
        """Make the present pause a quarter as long, but at least one call."""
        self._length = max(1, self._length // 4)

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._passed, self._length = 0, self._first
