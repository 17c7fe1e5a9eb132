"""The draft shape of one session over time: what is learnt from its rounds, and how slowly the shape changes.

A choice (see `draft_shape`) is what the shape should become. The shape follows it by at most one level in
`PATIENCE_ROUNDS` rounds, and only where choices were larger, or smaller, than the shape for `STEADY_ROUNDS` of them.
Rounds count when they were judged. So a timeout, by which no draft token is judged, changes nothing by itself, and
neither does a single time that is far off.

Until the first `PATIENCE_ROUNDS` rounds were judged, choices rest on what is expected of any drafter. They are followed
at once, except the choice to draft nothing. The first choice after that is taken as it is.

Speculation that does not pay ends at once after `PATIENCE_ROUNDS` rounds. It begins again after a gap of tokens that
grows with each trial that fails. A trial has the shape that was given up, since the size of its own draft is mostly not
what a target waits for. The trial gives what was learnt before little weight, so that a few rounds decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy

from starsd_edge.planning.acceptance import AcceptanceEstimator
from starsd_edge.planning.draft_shape import NOTHING, ShapeChoice, Wish
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.protocol.codes import FIRST, NOT_PAYING, TRIAL
from starsd_edge.protocol.counters import PathStep
from starsd_edge.speculation.tree import DraftShape

PATIENCE_ROUNDS = 8
"""Judged rounds between two changes of the depth, and before the first choice that is learnt from rounds."""
STEADY_ROUNDS = 4
"""Judged rounds for which choices must stay larger, or smaller, than the present shape before it changes."""
_STEADY_ROUNDS = {NOT_PAYING: 1}
"""Reasons for which fewer than `STEADY_ROUNDS` rounds are enough. Where drafts do not pay each further round is a loss,
so one round that confirms it suffices.
"""
FIRST_GAP_TOKENS = 32
"""Tokens without drafts before the first trial of speculation that did not pay; doubled with each trial that fails."""
MOST_GAP_TOKENS = 1024
"""Most tokens without drafts between two trials."""
_FIRST_TRIAL = DraftShape(4, 2, 2)
"""Shape of a trial where nothing was drafted before."""
_RECENT = 9
"""Rounds whose return time, without the verify pass, is kept."""


class ShapeController:
    """Chooses the draft shape of one session. Pure: times and counts come from outside.

    Attributes:
        why: the reason of the present shape, one of those in `starsd_edge.protocol.codes`.
        gain: expected speed with the present shape as a multiple of plain decoding; 0 while unknown.
    """

    def __init__(self) -> None:
        self.acceptance = AcceptanceEstimator(follows_changes=False)
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
        """A controller for the next session of the same target, with all that this one has learnt."""
        return deepcopy(self)

    def judged(self, steps: Sequence[PathStep]) -> None:
        """A round whose draft offered something became known; see `AcceptanceEstimator.learn`."""
        self.acceptance.learn(steps)
        self._since_change += 1
        if self._side:
            self._same_side += 1

    def returned(self, seconds: float, verify_s: float) -> None:
        """Take in Z of a round, and the seconds of it that the verify pass is taken to have had."""
        self._rest_s.append(max(0.0, seconds - verify_s))

    def progressed(self, tokens: int) -> None:
        """The sequence has grown by this many tokens since the last request."""
        if self._off_tokens is not None:
            self._off_tokens += tokens
            if self._off_tokens >= self._gap_tokens:
                self._begin_trial()

    def wish(self, verify: VerifyCurve, plain_s: float, limit: DraftShape) -> Wish | None:
        """This session as `share_hub` sees it; None while its return time is not known, or while it drafts nothing."""
        if not self._rest_s or self._off_tokens is not None:
            return None
        # Not the median: a target that decoded on before its draft came returns later for no reason of link or draft.
        rest_s = sorted(self._rest_s)[len(self._rest_s) // 4]
        return Wish(self.acceptance.rates, verify, rest_s, plain_s, limit)

    def choose(self, choice: ShapeChoice) -> None:
        """Take in the newest choice. The shape follows as the module's docstring says; a session that drafts nothing
        stays so until its gap ends.
        """
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
        """The shape to draft where `asked` was asked for."""
        if self._off_tokens is not None:
            return NOTHING
        return asked if self._shape is None else self._shape.within(asked)

    @property
    def present(self) -> DraftShape | None:
        """The present shape; None while drafts are as large as the target asks for."""
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
        """The depth is the chosen one: take the chosen number of nodes. A trial that has lasted until now has paid."""
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
        """Draft nothing. After a trial that did not pay the next gap is twice as long; not where the load of others is
        the reason.
        """
        self._off_tokens = 0
        if self._shape is not None and self._shape.max_depth:
            self._tried = self._shape
        if self.why == TRIAL and choice.why == NOT_PAYING:
            self._gap_tokens = min(2 * self._gap_tokens, MOST_GAP_TOKENS)

    def _begin_trial(self) -> None:
        if self.why == NOT_PAYING:
            self.acceptance.doubt()
        self._off_tokens = None
        self._shape = self._tried
        self.why = TRIAL
        self._since_change = self._same_side = self._side = 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
