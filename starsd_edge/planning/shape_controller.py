"""The draft shape of one session over time: what is learnt from its rounds, and how slowly it is changed.

A choice (see `draft_shape`) is a wish; the shape follows it by at most one level in `PATIENCE_ROUNDS` rounds, and only
where the wish has stood on the same side for some of them. Rounds count when they were judged, so a timeout,
which is judged by nothing, changes nothing by itself; nor does one time that is far off.

Until as many rounds were judged, choices rest on what is expected of any drafter, and are followed at once but for that
to draft nothing; the first one after that is taken as it is. Speculation that does not pay ends at once when
that long was waited, and begins again after a gap of tokens that grows with each trial that fails. A trial has
the shape that was given up, since what a target waits for is mostly not its own draft's size, and believes little of
what was known, so that a few rounds decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy

from starsd_edge.planning.curve import VerifyCurve
from starsd_edge.planning.draft_shape import NOTHING, ShapeChoice, Wish
from starsd_edge.planning.survival import SurvivalEstimator
from starsd_edge.protocol.codes import FIRST, NOT_PAYING, TRIAL
from starsd_edge.protocol.counters import PathStep
from starsd_edge.speculation.tree import DraftShape

PATIENCE_ROUNDS = 8
STEADY_ROUNDS = 4
_STEADY_ROUNDS = {NOT_PAYING: 1}
"""Where each further round is a loss, one that confirms it is enough."""
FIRST_GAP_TOKENS = 32
MOST_GAP_TOKENS = 1024
_FIRST_TRIAL = DraftShape(4, 2, 2)
"""Where nothing was drafted before."""
_RECENT = 9


class ShapeController:
    """One session. Pure: times and counts come from outside.

    Attributes:
        why: the reason of the present shape, one of `shape_reasons`.
        gain: expected of it, over plain decoding; 0 while unknown.
    """

    def __init__(self) -> None:
        self.survival = SurvivalEstimator()
        self.why = FIRST
        self.gain = 0.0
        self._shape: DraftShape | None = None
        self._learns = True
        self._tried = _FIRST_TRIAL
        self._since_change = 0
        self._same_side = 0
        self._side = 0
        self._gap_tokens = FIRST_GAP_TOKENS
        self._off_tokens: int | None = None
        self._rest_s: deque[float] = deque(maxlen=_RECENT)

    def successor(self) -> ShapeController:
        """For the next session of the same target: it goes on from here."""
        other = copy(self)
        other.survival = self.survival.copy()
        other._rest_s = deque(self._rest_s, maxlen=_RECENT)
        return other

    def judged(self, steps: Sequence[PathStep]) -> None:
        """A round whose draft offered something became known; see `SurvivalEstimator.judged`."""
        self.survival.judged(steps)
        self._since_change += 1
        if self._side:
            self._same_side += 1

    def returned(self, seconds: float, verify_s: float) -> None:
        """Z of a round, and what of it the verify pass is taken to have been."""
        self._rest_s.append(max(0.0, seconds - verify_s))

    def progressed(self, tokens: int) -> None:
        """The sequence has grown by so many tokens since the last request."""
        if self._off_tokens is not None:
            self._off_tokens += tokens
            if self._off_tokens >= self._gap_tokens:
                self._begin_trial()

    def wish(self, verify: VerifyCurve, plain_s: float, limit: DraftShape) -> Wish | None:
        """What this session would like; None while its return time is not known, or while it is off."""
        if not self._rest_s or self._off_tokens is not None:
            return None
        # Not the median: a target that went on before its draft came returns later, by no fault of link or draft.
        rest_s = sorted(self._rest_s)[len(self._rest_s) // 4]
        return Wish(self.survival.guesses, verify, rest_s, plain_s, limit)

    def choose(self, choice: ShapeChoice) -> None:
        """The newest wish. The shape follows when it may; what is off stays so until its gap ends."""
        if self._off_tokens is not None:
            return
        if self._learns and self._since_change < PATIENCE_ROUNDS:
            self._shape = choice.shape if choice.shape.max_depth else None
            return
        self.gain = choice.gain
        if self._learns or self._shape is None:
            self._learns = False
            self._move_to(choice.shape, choice)
            return
        side = _sign(choice.shape.max_depth - self._shape.max_depth)
        if side != self._side:
            self._side, self._same_side = side, 0
        if side == 0:
            self._settle(choice)
        elif self._since_change >= PATIENCE_ROUNDS and self._same_side >= _STEADY_ROUNDS.get(choice.why, STEADY_ROUNDS):
            self._step(choice, side)

    def shape(self, asked: DraftShape) -> DraftShape:
        """What to draft where this much was asked for."""
        if self._off_tokens is not None:
            return NOTHING
        return asked if self._shape is None else self._shape.within(asked)

    @property
    def present(self) -> DraftShape | None:
        """The shape now; None while it is what the target asks for."""
        return NOTHING if self._off_tokens is not None else self._shape

    def _step(self, choice: ShapeChoice, side: int) -> None:
        assert self._shape is not None  # noqa: S101 (only who still learns has none)
        if choice.shape.max_depth == 0:
            self._move_to(NOTHING, choice)
            return
        depth = self._shape.max_depth + side
        if depth == choice.shape.max_depth:
            self._move_to(choice.shape, choice)
        else:
            nodes = depth if choice.shape.branching == 1 else max(depth, choice.shape.max_nodes)
            self._move_to(DraftShape(nodes, depth, choice.shape.branching), choice)

    def _settle(self, choice: ShapeChoice) -> None:
        """Depth is as wished; so may the nodes be. A trial that stands by now has paid."""
        self._shape = choice.shape
        if self.why != TRIAL or self._since_change >= PATIENCE_ROUNDS:
            self.why = choice.why
            self._gap_tokens = FIRST_GAP_TOKENS

    def _move_to(self, shape: DraftShape, choice: ShapeChoice) -> None:
        if shape.max_depth == 0:
            self._turn_off(choice)
        else:
            self._gap_tokens = FIRST_GAP_TOKENS
        self._shape = shape
        self.why = choice.why
        self._since_change = self._same_side = self._side = 0

    def _turn_off(self, choice: ShapeChoice) -> None:
        """What fails its trial waits twice as long for the next; what leaves because of others does not."""
        self._off_tokens = 0
        if self._shape is not None and self._shape.max_depth:
            self._tried = self._shape
        if self.why == TRIAL and choice.why == NOT_PAYING:
            self._gap_tokens = min(2 * self._gap_tokens, MOST_GAP_TOKENS)

    def _begin_trial(self) -> None:
        if self.why == NOT_PAYING:
            self.survival.doubt()
        self._off_tokens = None
        self._shape = self._tried
        self.why = TRIAL
        self._since_change = self._same_side = self._side = 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
