"""Which draft shape each target gets: the best for itself, then shortened until the hub is at its knee.

Alone, a target is served best by the shape with most tokens per second, E / (S + Z): deeper where the link is long,
smaller where the verify pass grows with its rows. But many targets share one drafter. A round takes the share
u = S / (S + Z) of the hub's time, and all targets can have it only while the sum of u stays below 1. So:

1. Requests are assumed to be drafted together, in batches as large as needed: each then takes S(b) / b.
2. If that is not enough, drafts are shortened. Every target begins with the shape that gives most tokens per second of
   drafter time. Then each next step goes to the target that gains most tokens per second of it (greedy on the concave
   hull of each target's choices, which is optimal but for the last step).
3. Where even the shortest drafts are too much, all targets are slowed down alike. Those that are left with the least
   gain turn to plain decoding.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starsd_edge.planning.acceptance import LevelAcceptance
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.protocol.codes import BEST, LOAD, NOT_PAYING
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.service_model import ServiceCost

NOTHING = DraftShape(0, 0)
"""The shape of no draft: the target decodes plainly."""
WAITED_PASSES = 0.5
"""Passes of the drafter that a request waits for where several sessions are drafted for together: it comes in the
middle of a pass, on average.
"""
NODES_SLACK = 0.03
"""Share of the expected rate by which a tree of more nodes may be below the best one of its depth and still be taken. A
drafter puts nodes where its own probabilities are high, so it gains more from additional nodes than average acceptance
rates by level and rank can show.
"""


@dataclass(frozen=True)
class Wish:
    """One target, as the choice of its draft shape sees it.

    Attributes:
        acceptance: acceptance rates of the draft tokens, by level and rank.
        verify: seconds of its verify pass by rows, the root included.
        rest_s: seconds of its return time without the verify pass: link, waiting, its own work.
        plain_s: seconds of a step of plain decoding.
        limit: the largest shape that it takes.
    """

    acceptance: LevelAcceptance
    verify: VerifyCurve
    rest_s: float
    plain_s: float
    limit: DraftShape


@dataclass(frozen=True)
class Rung:
    """A draft shape with the tokens and seconds of its round.

    Attributes:
        tokens: E, expected tokens of a round, with the bonus token.
        return_s: Z with a draft of this shape, in seconds.
        draft_s: seconds from request to draft: S(b), and the wait for the pass before it to end.
        hub_s: the hub's time for the draft in seconds, S(b) / b.
    """

    shape: DraftShape
    tokens: float
    return_s: float
    draft_s: float
    hub_s: float

    @property
    def rate(self) -> float:
        """Tokens per second while the hub has time."""
        return self.tokens / (self.draft_s + self.return_s)

    @property
    def use(self) -> float:
        """Share of the hub's time that drafts of this shape take while the hub has time: u = S / (S + Z)."""
        return self.hub_s / (self.draft_s + self.return_s)


@dataclass(frozen=True)
class ShapeChoice:
    """The draft shape that a target gets, and the reason.

    Attributes:
        why: `BEST`: no other shape is expected to serve it better; `LOAD`: a smaller shape than that, or none, because
            of the load of the other targets; `NOT_PAYING`: none, because plain decoding is faster.
        gain: expected speed as a multiple of plain decoding.
    """

    shape: DraftShape
    why: str
    gain: float


def pass_seconds(cost: ServiceCost, shape: DraftShape, batch: float) -> float:
    """S(b) in seconds: a pass that drafts this shape for `batch` sessions."""
    shared_s, each_s = cost.line(shape)
    return shared_s + batch * each_s


def rungs(wish: Wish, cost: ServiceCost) -> list[Rung]:
    """For each depth from 1 on, the number of nodes that serves this target best by itself."""
    limit = wish.limit
    verify_s = [wish.verify.at(rows) for rows in range(limit.max_nodes + 2)]
    ladder = []
    for depth in range(1, min(limit.max_depth, limit.max_nodes) + 1):
        most = limit.max_nodes if limit.branching > 1 else depth
        accepted = wish.acceptance.accepted(most, depth, limit.branching)
        at_depth = []
        for nodes in range(depth, len(accepted)):
            shape = DraftShape(nodes, depth, limit.branching if nodes > depth else 1)
            draft_s = pass_seconds(cost, shape, 1)
            at_depth.append(Rung(shape, 1 + accepted[nodes], wish.rest_s + verify_s[nodes + 1], draft_s, draft_s))
        ladder.append(_largest_near_best(at_depth))
    return ladder


def _largest_near_best(at_depth: Sequence[Rung]) -> Rung:
    """Of trees, the one with most nodes whose rate is within `NODES_SLACK` of the best; of chains the best, since a
    chain of one depth has only one number of nodes.
    """
    best = max(at_depth, key=lambda rung: rung.rate)
    near = [rung for rung in at_depth if rung.shape.branching > 1 and rung.rate >= (1 - NODES_SLACK) * best.rate]
    return max([best, *near], key=lambda rung: rung.shape.max_nodes)


def _in_batch(rung: Rung, line: tuple[float, float], batch: int) -> Rung:
    """The same rung where `batch` sessions are drafted for together; `line` is `ServiceCost.line` of its shape."""
    pass_s = line[0] + batch * line[1]
    return Rung(rung.shape, rung.tokens, rung.return_s, (1 + WAITED_PASSES * (batch > 1)) * pass_s, pass_s / batch)


def share_hub(wishes: Sequence[Wish], cost: ServiceCost, max_batch: int) -> list[ShapeChoice]:
    """The draft shape of each target at a hub that drafts for all of them, in batches of at most `max_batch`. The rule
    stands in this module's docstring.
    """
    singly = [rungs(wish, cost) for wish in wishes]
    lines = [[cost.line(rung.shape) for rung in ladder] for ladder in singly]
    ladders: list[list[Rung]] = []
    for batch in _batches(min(max_batch, len(wishes))):
        batched = [
            [_in_batch(rung, line, batch) for rung, line in zip(ladder, of_ladder, strict=True)]
            for ladder, of_ladder in zip(singly, lines, strict=True)
        ]
        if batch > 1:
            batched = _together(batched)
        ladders = [_paying(ladder, wish) for ladder, wish in zip(batched, wishes, strict=True)]
        best = [ladder[-1] if ladder else None for ladder in ladders]
        if _load(best) <= 1:
            return [_choice(rung, rung, wish) for rung, wish in zip(best, wishes, strict=True)]
    return _shorten(ladders, wishes)


def _together(ladders: Sequence[Sequence[Rung]]) -> list[list[Rung]]:
    """A pass takes as long as its deepest tree: a short draft does not come sooner for being short, where others are
    drafted with it.
    """
    best = [max(ladder, key=lambda rung: rung.rate) for ladder in ladders if ladder]
    usual_s = statistics.fmean(rung.draft_s for rung in best) if best else 0.0
    return [[replace(rung, draft_s=max(rung.draft_s, usual_s)) for rung in ladder] for ladder in ladders]


def _batches(most: int) -> list[int]:
    """Sizes of batch to try: 1, 2, 4 and so on up to `most`."""
    sizes = []
    size = 1
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, max(1, most)]


def _paying(ladder: Sequence[Rung], wish: Wish) -> list[Rung]:
    """The rungs worth choosing between, from the one with most tokens per second of drafter up to the one with most
    tokens per second: on the way from each to the next, what another second of drafter brings grows less. None where
    plain decoding is as fast as any.
    """
    if not ladder:
        return []
    best = max(ladder, key=lambda rung: rung.rate)
    if best.rate * wish.plain_s <= 1:
        return []
    worth_it = [rung for rung in ladder if rung.rate * wish.plain_s > 1 and rung.use <= best.use]
    thriftiest = max(worth_it, key=lambda rung: rung.tokens / rung.hub_s if rung.hub_s else float("inf"))
    between = [rung for rung in worth_it if thriftiest.use < rung.use and thriftiest.rate < rung.rate]
    hull = [thriftiest]
    for rung in sorted(between, key=lambda rung: (rung.use, -rung.rate)):
        if rung.rate <= hull[-1].rate:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], rung):
            hull.pop()
        hull.append(rung)
    return hull


def _slope(low: Rung, high: Rung) -> float:
    return (high.rate - low.rate) / max(high.use - low.use, 1e-12)


def _load(chosen: Sequence[Rung | None]) -> float:
    return sum(rung.use for rung in chosen if rung is not None)


def _shorten(ladders: Sequence[Sequence[Rung]], wishes: Sequence[Wish]) -> list[ShapeChoice]:
    chosen = [ladder[0] if ladder else None for ladder in ladders]
    if _load(chosen) > 1:
        _drop_losers(chosen, wishes)
    else:
        _lengthen(chosen, ladders)
    slowed = max(1.0, _load(chosen))
    return [
        _choice(rung, ladder[-1] if ladder else None, wish, slowed)
        for rung, ladder, wish in zip(chosen, ladders, wishes, strict=True)
    ]


def _drop_losers(chosen: list[Rung | None], wishes: Sequence[Wish]) -> None:
    """Turn the target with the least gain to plain decoding, one by one, until drafts pay for all that are left."""
    load = _load(chosen)
    by_gain = sorted(
        (rung.rate * wish.plain_s, number, rung.use)
        for number, (rung, wish) in enumerate(zip(chosen, wishes, strict=True))
        if rung is not None
    )
    for gain, number, use in by_gain:
        if gain > max(1.0, load):
            return
        chosen[number] = None
        load -= use


def _lengthen(chosen: list[Rung | None], ladders: Sequence[Sequence[Rung]]) -> None:
    """Lengthen drafts step by step, always for the target that gains most, while the hub has time."""
    load = _load(chosen)
    steps = [(-_slope(*ladder[:2]), number, 1) for number, ladder in enumerate(ladders) if len(ladder) > 1]
    heapq.heapify(steps)
    while steps:
        _, number, index = heapq.heappop(steps)
        ladder = ladders[number]
        more = ladder[index].use - ladder[index - 1].use
        if load + more > 1:
            continue
        load += more
        chosen[number] = ladder[index]
        if index + 1 < len(ladder):
            heapq.heappush(steps, (-_slope(ladder[index], ladder[index + 1]), number, index + 1))


def _choice(rung: Rung | None, best: Rung | None, wish: Wish, slowed: float = 1.0) -> ShapeChoice:
    if best is None:
        return ShapeChoice(NOTHING, NOT_PAYING, 1.0)
    if rung is None:
        return ShapeChoice(NOTHING, LOAD, 1.0)
    return ShapeChoice(rung.shape, BEST if rung is best else LOAD, rung.rate * wish.plain_s / slowed)


def paying_shape(seconds: Sequence[float], acceptance: LevelAcceptance, limit: DraftShape) -> DraftShape:
    """The largest draft shape that pays where only the times of verify passes are known: no hub, link or drafter yet.

    Each draft token must be expected to bring more tokens than plain decoding gives in the time of its row. The shape
    has at least one draft token, so that the acceptance rate is seen.

    Args:
        seconds: seconds of passes over 1, 2 .. `limit.max_nodes + 1` rows, the first above 0.
        acceptance: expected acceptance rates.
        limit: the largest shape allowed.
    """
    best, most = DraftShape(1, 1), float("-inf")
    for depth in range(1, min(limit.max_depth, limit.max_nodes) + 1):
        accepted = acceptance.accepted(limit.max_nodes, depth, limit.branching)
        for nodes in range(depth, len(accepted)):
            net = accepted[nodes] - (seconds[nodes] / seconds[0] - 1)
            if net > most:
                most = net
                best = DraftShape(nodes, depth, limit.branching if nodes > depth else 1)
    return best
