"""A plan of a star: the closed form and the simulation side by side, from assumed or measured parts of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from starsd_edge.planning import law
from starsd_edge.planning import law as load
from starsd_edge.planning.acceptance import LevelAcceptance
from starsd_edge.planning.hub_share import DraftDemand, ShapeOption, pass_seconds, shape_options, share_hub
from starsd_edge.planning.law import LinkCost, bytes_down, bytes_up
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.planning.simulator import SimulatedStar, SimulatedTarget, StarResult, simulate
from starsd_edge.planning.times import GammaTimes, ModelService, ServiceTimes, Times
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.service_model import ServiceCost

ROUNDS = 1500
"""Least number of rounds simulated for each number of targets: rates then scatter by about one per cent."""
ROUNDS_EACH = 20
"""Least number of rounds simulated for each target, so that every target is counted often enough in a large star."""
MOST_TARGETS = 4096
"""Largest number of targets that a plan looks at."""


@dataclass(frozen=True)
class Inputs:
    """What is known or assumed of a star whose targets are alike. Seconds and bytes.

    Attributes:
        cost: S(b, shape).
        acceptance: acceptance rates of the draft tokens, by level and rank.
        verify: seconds of the target's verify pass by rows.
        own_s: seconds of a target's round outside its model.
        plain_s: seconds of a whole step of plain decoding.
        link: the link to the hub.
        feature_bytes: bytes of features that each row carries to the hub.
        limit: largest draft.
        max_batch: most requests in one pass of the drafter.
        order: the policy of the hub's queue.
        variation: coefficient of variation of the return time, for the simulation.
    """

    cost: ServiceCost
    acceptance: LevelAcceptance
    verify: VerifyCurve
    own_s: float
    plain_s: float
    link: LinkCost
    feature_bytes: float
    limit: DraftShape
    max_batch: int
    order: str
    variation: float

    @property
    def demand(self) -> DraftDemand:
        """Each target as the choice of draft shapes sees it. The bytes of the link are those of a round of the largest
        draft: they differ little between shapes.
        """
        tokens = 1 + self.acceptance.accepted(self.limit.max_nodes, self.limit.max_depth, self.limit.branching)[-1]
        link_s = self.link.seconds(bytes_up(tokens, self.feature_bytes), bytes_down(self.limit.max_nodes))
        return DraftDemand(self.acceptance, self.verify, link_s + self.own_s, self.plain_s, self.limit)


@dataclass(frozen=True)
class MeasuredRound:
    """Parts of a round as they were measured, all of one shape of draft. Seconds.

    Attributes:
        service: S by size of batch.
        returns: Z.
        tokens: E.
        plain_s: a step of plain decoding; None where that was not measured.
    """

    service: ServiceTimes
    returns: Times
    tokens: float
    plain_s: float | None
    max_batch: int
    order: str


@dataclass(frozen=True)
class AtTargets:
    """Figures of a star with one number of targets.

    Attributes:
        shapes: draft shapes, one for each target; empty where they were measured, and not chosen.
        tokens_per_s: tokens per second of all targets together, by the closed form.
        utilisation: the hub's busy share, by the closed form.
        drafting: targets that draft at all; the others decode plainly.
        gain: of the least favoured target over plain decoding; None where a plain step is not known.
        simulated: results of the simulation of the same star; None where no target drafts.
        simulated_tokens_per_s: tokens per second of all targets together in the simulation, those that decode plainly
            included.
    """

    targets: int
    shapes: Sequence[DraftShape]
    tokens_per_s: float
    utilisation: float
    drafting: int
    gain: float | None
    simulated: StarResult | None
    simulated_tokens_per_s: float


@dataclass(frozen=True)
class Knee:
    """How many targets a hub is for.

    Attributes:
        alone: what one target gets: its shape, E, S and Z.
        full: N_full, the first number of targets with which the hub is never idle.
        most: N_break, the greatest with which none is slower than by plain decoding; None where a plain step is not
            known.
        gain: of one target with the hub to itself, over plain decoding; None where a plain step is not known.
    """

    alone: ShapeOption
    full: int
    most: int | None
    gain: float | None

    @property
    def sweet_spot(self) -> tuple[int, int] | None:
        """From the first number of targets that keeps the hub busy to the last that all gain by; None if there is
        none.
        """
        return None if self.most is None or self.most < self.full else (self.full, self.most)


def knee(inputs: Inputs) -> Knee:
    """The knee for the draft that serves one target best, or for the smallest draft where none pays."""
    options = shape_options(inputs.demand, inputs.cost)
    alone = max(options, key=lambda option: option.rate)

    def draft_s(batch: float) -> float:
        return pass_seconds(inputs.cost, alone.shape, batch)

    return Knee(
        alone=alone,
        full=law.targets_without_idling(alone.draft_s, alone.return_s),
        most=_most_targets(alone.tokens * inputs.plain_s, draft_s, alone.return_s, inputs.max_batch),
        gain=alone.rate * inputs.plain_s,
    )


def measured_knee(measured: MeasuredRound) -> Knee:
    """The knee from the means of the measured parts."""
    one = DraftShape(1, 1)

    def draft_s(batch: float) -> float:
        return measured.service.mean_s([one] * max(1, round(batch)))

    draft, back = draft_s(1), measured.returns.mean_s
    option = ShapeOption(one, measured.tokens, back, draft, draft)
    plain_s = measured.plain_s
    return Knee(
        alone=option,
        full=law.targets_without_idling(draft, back),
        most=None if plain_s is None else _most_targets(measured.tokens * plain_s, draft_s, back, measured.max_batch),
        gain=None if plain_s is None else option.rate * plain_s,
    )


def _most_targets(worth_s: float, draft_s: Callable[[float], float], return_s: float, max_batch: int) -> int:
    """The greatest number of targets whose round takes no longer than its tokens would by plain decoding, `worth_s`; 0
    where that is true of none.
    """

    def pays(targets: int) -> bool:
        took_s, _ = load.batched_round(targets, draft_s, return_s, max_batch)
        return took_s <= worth_s * (1 + 1e-9)

    if not pays(1):
        return 0
    low, high = 1, MOST_TARGETS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def at_targets(inputs: Inputs, targets: int, seed: int) -> AtTargets:
    """A star of this many targets, each with the draft shape that suits this load."""
    demand = inputs.demand
    choices = share_hub([demand] * targets, inputs.cost, inputs.max_batch)
    shapes = [choice.shape for choice in choices if choice.shape.max_nodes]
    plain_per_s = (targets - len(shapes)) / inputs.plain_s
    if not shapes:
        return AtTargets(targets, shapes, plain_per_s, 0.0, 0, 1.0, None, plain_per_s)
    tokens = [1 + _accepted(inputs.acceptance, shape) for shape in shapes]
    returns_s = [demand.rest_s + demand.verify.at(shape.max_nodes + 1) for shape in shapes]

    def draft_s(batch: float) -> float:
        return sum(pass_seconds(inputs.cost, shape, batch) for shape in shapes) / len(shapes)

    took_s, batch = load.batched_round(len(shapes), draft_s, sum(returns_s) / len(shapes), inputs.max_batch)
    simulated = simulate(
        SimulatedStar(
            [
                SimulatedTarget(GammaTimes(back, inputs.variation), each, shape)
                for back, each, shape in zip(returns_s, tokens, shapes, strict=True)
            ],
            ModelService(inputs.cost),
            inputs.order,
            inputs.max_batch,
        ),
        _rounds(len(shapes)),
        seed,
    )
    return AtTargets(
        targets=targets,
        shapes=shapes,
        tokens_per_s=plain_per_s + sum(tokens) / took_s,
        utilisation=min(1.0, len(shapes) / batch * draft_s(batch) / took_s),
        drafting=len(shapes),
        gain=1.0 if plain_per_s else min(tokens) / took_s * inputs.plain_s,
        simulated=simulated,
        simulated_tokens_per_s=plain_per_s + simulated.tokens_per_s,
    )


def measured_at_targets(measured: MeasuredRound, targets: int, seed: int) -> AtTargets:
    """A star of this many targets like the measured one."""
    one = DraftShape(1, 1)

    def draft_s(batch: float) -> float:
        return measured.service.mean_s([one] * max(1, round(batch)))

    took_s, batch = load.batched_round(targets, draft_s, measured.returns.mean_s, measured.max_batch)
    each = SimulatedTarget(measured.returns, measured.tokens)
    simulated = simulate(
        SimulatedStar([each] * targets, measured.service, measured.order, measured.max_batch), _rounds(targets), seed
    )
    return AtTargets(
        targets=targets,
        shapes=[],
        tokens_per_s=targets * measured.tokens / took_s,
        utilisation=min(1.0, targets / batch * draft_s(batch) / took_s),
        drafting=targets,
        gain=None if measured.plain_s is None else measured.tokens * measured.plain_s / took_s,
        simulated=simulated,
        simulated_tokens_per_s=simulated.tokens_per_s,
    )


def _rounds(targets: int) -> int:
    return max(ROUNDS, ROUNDS_EACH * targets)


def telling_counts(found: Knee, asked: int | None) -> list[int]:
    """Numbers of targets at which something changes: few, about the knee, up to twice of it and to the break-even."""
    counts = {1, 2, found.full - 1, found.full, found.full + 1, 2 * found.full}
    if found.most is not None:
        counts.add(min(found.most, 4 * found.full))
    if asked is not None:
        counts.add(asked)
    return sorted(count for count in counts if 1 <= count <= MOST_TARGETS)


def at_links(inputs: Inputs, links: Sequence[LinkCost]) -> list[tuple[LinkCost, Knee]]:
    """The knee of the same star for each of these links."""
    return [(link, knee(replace(inputs, link=link))) for link in links]


def break_even_rtt_s(inputs: Inputs, alone: ShapeOption) -> float:
    """The round-trip time at which one target with the hub to itself is no faster than by plain decoding."""
    cost = law.RoundCost(
        draft_s=alone.draft_s,
        rtt_s=inputs.link.rtt_s,
        transfer_s=alone.return_s - inputs.link.rtt_s - inputs.own_s - inputs.verify.at(alone.shape.max_nodes + 1),
        overhead_s=0.0,
        verify_s=inputs.verify.at(alone.shape.max_nodes + 1),
        own_s=inputs.own_s,
    )
    return law.break_even_rtt_s(alone.tokens, inputs.plain_s, cost)


def _accepted(acceptance: LevelAcceptance, shape: DraftShape) -> float:
    worth = acceptance.accepted(shape.max_nodes, shape.max_depth, shape.branching)
    return worth[min(shape.max_nodes, len(worth) - 1)]
