"""Which stars `bench star` runs: sweeps of points, the baselines among them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from starsd_edge.bench.device_times import LinkTimes, ModelDraftTimes
from starsd_edge.bench.star_runs import WAIT_ALWAYS_S, HubPlan, Point
from starsd_edge.planning.law import targets_without_idling
from starsd_edge.scheduling.policies import FIFO
from starsd_edge.speculation.tree import DraftShape

BASELINES, LAW, SCALE, HEAD, RTT, POLICY, BATCH, SHAPE, CROWD = (
    "baselines",
    "law",
    "scale",
    "head",
    "rtt",
    "policy",
    "batch",
    "shape",
    "crowd",
)
SWEEPS = (BASELINES, LAW, SCALE, HEAD, RTT, POLICY, BATCH, SHAPE, CROWD)
QUICK_SWEEPS = (BASELINES, LAW, SCALE, HEAD, RTT, POLICY)

OURS = "starsd-edge"
PUBLISHED = "published"
"""System of the published design: first come, first served, one draft at a time, trees of a fixed depth, and targets
that wait for every draft.
"""
PLAIN = "plain"
COLOCATED = "co-located"
"""System with a drafter beside each target: no network, no queue."""
WRONG = "wrong drafter"
FIXED = "fixed shape"

PUBLISHED_DEPTH = 5
"""Levels of the draft trees of the published design."""
LAW_SHAPE = DraftShape(5, 5, 1)
"""Draft shape of the law runs: a chain, because its S varies little."""
NEAR_S, FAR_S = 0.001, 0.05
"""Round-trip times in seconds of a near and of a far hub."""
SPREAD_RTT_S = (0.0001, 0.2)
"""Round-trip times in seconds of the nearest and the farthest of targets at unequal distances. The others lie between
them at equal ratios.
"""
MOST_FAR = 32
"""Most targets of a far hub, whatever number would keep it busy."""
_BEYOND_FULL = 2
"""Targets beyond N_full of the law with which a hub is taken to be busy all the time."""
_CROWD_DRAFT_S = 0.1
"""Seconds of a pass in the crowd sweep: with so few rounds a second, two CPU cores can run all its targets and the hub.
"""


@dataclass(frozen=True)
class StarSettings:
    """Settings that all points of `bench star` share.

    Attributes:
        targets: N of the scale sweep, rising.
        law_targets: N of the law runs.
        link: link of the usual target.
        rtts_s: round-trip times of the RTT sweep, in seconds.
        shape: largest draft.
        shapes: draft shapes of the shape sweep.
        policies: policies that the hub knows; `policy` is the usual one.
        max_batch: the hub's usual limit of a batch; 1 where it knows no batches.
        draft_s: least seconds of a pass for one session where S is to be near a published one.
        draft_growth: time that each further session adds to it, as a share.
        unequal_targets: N where policies are compared.
        sessions: sessions of the crowd, in all; `per_target` of them on each connection.
    """

    targets: Sequence[int]
    law_targets: Sequence[int]
    link: LinkTimes
    rtts_s: Sequence[float]
    shape: DraftShape
    shapes: Sequence[DraftShape]
    policies: Sequence[str]
    policy: str
    max_batch: int
    draft_s: float
    draft_growth: float
    verify_s: float
    unequal_targets: int = 32
    sessions: int = 500
    per_target: int = 5

    @property
    def far_targets(self) -> int:
        """Targets that keep the hub busy also at `FAR_S`: two more than the law asks for, up to `MOST_FAR`."""
        return min(MOST_FAR, targets_without_idling(self.draft_s, self.verify_s + FAR_S) + _BEYOND_FULL)

    @property
    def published_shape(self) -> DraftShape:
        """The usual shape with the depth of the published design."""
        return replace(self.shape, max_depth=PUBLISHED_DEPTH)

    @property
    def usual_hub(self) -> HubPlan:
        """The usual hub of our system, which chooses draft shapes by itself."""
        return HubPlan(self.policy, self.max_batch)

    def chains(self, policy: str) -> HubPlan:
        """A hub that the law describes: chains of one length, drafted one at a time, with S near a published one."""
        return HubPlan(policy, 1, LAW_SHAPE, ModelDraftTimes(self.draft_s))

    @property
    def device(self) -> ModelDraftTimes:
        """The hub's modelled accelerator."""
        return ModelDraftTimes(self.draft_s, self.draft_growth, PUBLISHED_DEPTH)

    @property
    def published_hub(self) -> HubPlan:
        """The hub of the published design."""
        return HubPlan(FIFO, 1, self.published_shape)


def points_of(sweep: str, settings: StarSettings) -> list[Point]:
    """The points of one sweep, in the order in which they are run."""
    return list(_MAKERS[sweep](settings))


def spread_links(count: int, bits_per_s: float | None = None) -> tuple[LinkTimes, ...]:
    """Links of `count` targets at unequal distances (`SPREAD_RTT_S`)."""
    low, high = SPREAD_RTT_S
    steps = max(1, count - 1)
    return tuple(LinkTimes(low * (high / low) ** (number / steps), bits_per_s) for number in range(count))


def _baselines(settings: StarSettings) -> Iterator[Point]:
    near, far = (settings.link,), (replace(settings.link, rtt_s=FAR_S),)
    published, usual = (replace(hub, times=settings.device) for hub in (settings.published_hub, settings.usual_hub))
    yield Point(BASELINES, PLAIN, None, near, settings.shape)
    yield Point(BASELINES, COLOCATED, published, (LinkTimes(0.0),), settings.published_shape)
    yield Point(BASELINES, WRONG, replace(usual, wrong=True), near, settings.shape, None)
    yield Point(BASELINES, OURS, usual, far, settings.shape, None)


def _law(settings: StarSettings) -> Iterator[Point]:
    for targets in settings.law_targets:
        yield Point(LAW, OURS, settings.chains(FIFO), (settings.link,) * targets, LAW_SHAPE)


def _scale(settings: StarSettings) -> Iterator[Point]:
    return _both(SCALE, settings, settings.targets, settings.device)


def _head(settings: StarSettings) -> Iterator[Point]:
    return _both(HEAD, settings, sorted({min(settings.targets), max(settings.targets)}), None)


def _both(sweep: str, settings: StarSettings, counts: Sequence[int], times: ModelDraftTimes | None) -> Iterator[Point]:
    """Points of our system and of the published design, on the same modelled drafter."""
    for targets in counts:
        links = (settings.link,) * targets
        yield Point(sweep, OURS, replace(settings.usual_hub, times=times), links, settings.shape, None)
        yield Point(sweep, PUBLISHED, replace(settings.published_hub, times=times), links, settings.published_shape)


def _rtt(settings: StarSettings) -> Iterator[Point]:
    hub = settings.chains(settings.policy)
    for targets in (settings.far_targets, 1):
        for rtt_s in settings.rtts_s:
            links = (replace(settings.link, rtt_s=rtt_s),) * targets
            yield Point(RTT, OURS, hub, links, LAW_SHAPE)


def _policy(settings: StarSettings) -> Iterator[Point]:
    links = spread_links(settings.unequal_targets, settings.link.bits_per_s)
    for policy in settings.policies:
        yield Point(POLICY, OURS, settings.chains(policy), links, LAW_SHAPE)


def _batch(settings: StarSettings) -> Iterator[Point]:
    batches = [batch for batch in (1, 2, 4, 8, 16, 32) if batch <= settings.max_batch]
    for batch in batches:
        hub = replace(settings.usual_hub, max_batch=batch, times=settings.device)
        yield Point(BATCH, OURS, hub, (settings.link,) * max(settings.targets), settings.shape, None)


def _shape(settings: StarSettings) -> Iterator[Point]:
    for targets in sorted({min(settings.targets), max(settings.targets)}):
        links = (settings.link,) * targets
        hub = replace(settings.usual_hub, times=settings.device)
        yield Point(SHAPE, OURS, hub, links, settings.shape, None)
        for shape in settings.shapes:
            yield Point(SHAPE, FIXED, replace(hub, shape=shape), links, shape, None)


def _crowd(settings: StarSettings) -> Iterator[Point]:
    links = (settings.link,) * max(1, settings.sessions // settings.per_target)
    hub = replace(settings.usual_hub, shape=LAW_SHAPE, times=ModelDraftTimes(_CROWD_DRAFT_S))
    yield Point(CROWD, OURS, hub, links, LAW_SHAPE, WAIT_ALWAYS_S, settings.per_target)


_MAKERS = {
    BASELINES: _baselines,
    LAW: _law,
    SCALE: _scale,
    HEAD: _head,
    RTT: _rtt,
    POLICY: _policy,
    BATCH: _batch,
    SHAPE: _shape,
    CROWD: _crowd,
}
