"""The division of a hub's time among its targets: which draft shape each of them gets.

Each gets the shape that is best for itself, shortened until the hub has time for all of them.

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
class DraftDemand:
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
class ShapeOption:
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


def shape_options(demand: DraftDemand, cost: ServiceCost) -> list[ShapeOption]:
    """For each depth from 1 on, the number of nodes that serves this target best by itself."""
    limit = demand.limit
    verify_s = [demand.verify.at(rows) for rows in range(limit.max_nodes + 2)]
    options = []
    for depth in range(1, min(limit.max_depth, limit.max_nodes) + 1):
        most = limit.max_nodes if limit.branching > 1 else depth
        accepted = demand.acceptance.accepted(most, depth, limit.branching)
        at_depth = []
        for nodes in range(depth, len(accepted)):
            shape = DraftShape(nodes, depth, limit.branching if nodes > depth else 1)
            draft_s, return_s = pass_seconds(cost, shape, 1), demand.rest_s + verify_s[nodes + 1]
            at_depth.append(ShapeOption(shape, 1 + accepted[nodes], return_s, draft_s, draft_s))
        options.append(_largest_near_best(at_depth))
    return options


def _largest_near_best(at_depth: Sequence[ShapeOption]) -> ShapeOption:
    """Of options of one depth: the tree with most nodes among those whose rate is within `NODES_SLACK` of the best, or
    the chain where it is the best and no such tree has more nodes.
    """
    best = max(at_depth, key=lambda option: option.rate)
    enough = (1 - NODES_SLACK) * best.rate
    near = [option for option in at_depth if option.shape.branching > 1 and option.rate >= enough]
    return max([best, *near], key=lambda option: option.shape.max_nodes)


def _in_batch(option: ShapeOption, line: tuple[float, float], batch: int) -> ShapeOption:
    """The same option where `batch` sessions are drafted for together; `line` is `ServiceCost.line` of its shape."""
    pass_s = line[0] + batch * line[1]
    return replace(option, draft_s=(1 + WAITED_PASSES * (batch > 1)) * pass_s, hub_s=pass_s / batch)


def share_hub(demands: Sequence[DraftDemand], cost: ServiceCost, max_batch: int) -> list[ShapeChoice]:
    """The draft shape of each target at a hub that drafts for all of them, in batches of at most `max_batch`. The rule
    stands in this module's docstring.
    """
    singly = [shape_options(demand, cost) for demand in demands]
    lines = [[cost.line(option.shape) for option in options] for options in singly]
    all_options: list[list[ShapeOption]] = []
    for batch in _batches(min(max_batch, len(demands))):
        batched = [
            [_in_batch(option, line, batch) for option, line in zip(options, of_target, strict=True)]
            for options, of_target in zip(singly, lines, strict=True)
        ]
        if batch > 1:
            batched = _together(batched)
        all_options = [_paying(options, demand) for options, demand in zip(batched, demands, strict=True)]
        best = [options[-1] if options else None for options in all_options]
        if _load(best) <= 1:
            return [_choice(option, option, demand) for option, demand in zip(best, demands, strict=True)]
    return _shorten(all_options, demands)


def _together(all_options: Sequence[Sequence[ShapeOption]]) -> list[list[ShapeOption]]:
    """The same options where sessions are drafted together. A pass takes as long as its deepest tree, so a short draft
    comes no sooner than the usual one.
    """
    best = [max(options, key=lambda option: option.rate) for options in all_options if options]
    usual_s = statistics.fmean(option.draft_s for option in best) if best else 0.0
    return [[replace(option, draft_s=max(option.draft_s, usual_s)) for option in options] for options in all_options]


def _batches(most: int) -> list[int]:
    """Sizes of batch to try: 1, 2, 4 and so on up to `most`."""
    sizes = []
    size = 1
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, max(1, most)]


def _paying(options: Sequence[ShapeOption], demand: DraftDemand) -> list[ShapeOption]:
    """The options of one target that are worth choosing between; none where plain decoding is as fast as any.

    The first gives most tokens per second of the drafter's time, the last most tokens per second. Those between lie
    on the concave hull: each step brings fewer tokens for the same time of the drafter than the step before it.
    """
    if not options:
        return []
    best = max(options, key=lambda option: option.rate)
    if best.rate * demand.plain_s <= 1:
        return []
    worth_it = [option for option in options if option.rate * demand.plain_s > 1 and option.use <= best.use]
    cheapest = max(worth_it, key=lambda option: option.tokens / option.hub_s if option.hub_s else float("inf"))
    between = [option for option in worth_it if cheapest.use < option.use and cheapest.rate < option.rate]
    hull = [cheapest]
    for option in sorted(between, key=lambda option: (option.use, -option.rate)):
        if option.rate <= hull[-1].rate:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _slope(low: ShapeOption, high: ShapeOption) -> float:
    return (high.rate - low.rate) / max(high.use - low.use, 1e-12)


def _load(chosen: Sequence[ShapeOption | None]) -> float:
    return sum(option.use for option in chosen if option is not None)


def _shorten(all_options: Sequence[Sequence[ShapeOption]], demands: Sequence[DraftDemand]) -> list[ShapeChoice]:
    chosen = [options[0] if options else None for options in all_options]
    if _load(chosen) > 1:
        _drop_least_gaining(chosen, demands)
    else:
        _lengthen(chosen, all_options)
    slowed = max(1.0, _load(chosen))
    return [
        _choice(option, options[-1] if options else None, demand, slowed)
        for option, options, demand in zip(chosen, all_options, demands, strict=True)
    ]


def _drop_least_gaining(chosen: list[ShapeOption | None], demands: Sequence[DraftDemand]) -> None:
    """Turn the target with the least gain to plain decoding, one by one, until drafts pay for all that are left."""
    load = _load(chosen)
    by_gain = sorted(
        (option.rate * demand.plain_s, number, option.use)
        for number, (option, demand) in enumerate(zip(chosen, demands, strict=True))
        if option is not None
    )
    for gain, number, use in by_gain:
        if gain > max(1.0, load):
            return
        chosen[number] = None
        load -= use


def _lengthen(chosen: list[ShapeOption | None], all_options: Sequence[Sequence[ShapeOption]]) -> None:
    """Lengthen drafts step by step, always for the target that gains most, while the hub has time."""
    load = _load(chosen)
    steps = [(-_slope(*options[:2]), number, 1) for number, options in enumerate(all_options) if len(options) > 1]
    heapq.heapify(steps)
    while steps:
        _, number, index = heapq.heappop(steps)
        options = all_options[number]
        more = options[index].use - options[index - 1].use
        if load + more > 1:
            continue
        load += more
        chosen[number] = options[index]
        if index + 1 < len(options):
            heapq.heappush(steps, (-_slope(options[index], options[index + 1]), number, index + 1))


def _choice(
    option: ShapeOption | None, best: ShapeOption | None, demand: DraftDemand, slowed: float = 1.0
) -> ShapeChoice:
    """What a target gets: this option, of which `best` serves it best; the load makes rounds longer by `slowed`."""
    if best is None:
        return ShapeChoice(NOTHING, NOT_PAYING, 1.0)
    if option is None:
        return ShapeChoice(NOTHING, LOAD, 1.0)
    return ShapeChoice(option.shape, BEST if option is best else LOAD, option.rate * demand.plain_s / slowed)
