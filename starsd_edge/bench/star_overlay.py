"""What theory says of a point that was run, from the S and Z that were measured there: the law and the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from starsd_edge.bench.star_runs import Measured
from starsd_edge.planning.law import tokens_per_s
from starsd_edge.planning.load import utilisation
from starsd_edge.planning.simulator import SimulatedTarget, Star, simulate
from starsd_edge.planning.times import SampledService, SampledTimes

_ROUNDS_PER_TARGET = 200


@dataclass(frozen=True)
class Expected:
    """One prediction of a point.

    Attributes:
        tokens_per_s: of all targets together, bonus tokens included.
        utilisation: the hub's busy share.
    """

    tokens_per_s: float
    utilisation: float


def is_serial(measured: Measured) -> bool:
    """Whether theory speaks of such a point: one draft at a time, and all of them waited for."""
    point = measured.point
    return (
        point.hub is not None
        and point.hub.max_batch == 1
        and point.wait_s is not None
        and all(target.returns_s for target in measured.targets)
    )


def has_law(measured: Measured) -> bool:
    """Whether the closed form does: its targets are all equal."""
    return is_serial(measured) and len(set(measured.point.links)) == 1


def law_of(measured: Measured) -> Expected:
    """The closed form, for a point that has one: X = N E / max(S + Z, N S), U = min(1, N S / (S + Z))."""
    count, tokens = len(measured.targets), measured.tokens_per_draft
    draft_s, return_s = measured.mean_service_s, measured.mean_return_s
    system = count * tokens_per_s(tokens, draft_s, return_s, count)
    return Expected(system, utilisation(count, draft_s, return_s))


def simulated(measured: Measured, seed: int) -> Expected:
    """The same star in the simulator, for a serial point: each target with the Z that was measured of it, the hub with
    the S of all.

    Raises:
        ModuleNotFoundError: simpy is not installed.
    """
    hub = measured.point.hub
    assert hub is not None  # noqa: S101 (a serial point has one)
    targets = [SimulatedTarget(SampledTimes(target.returns_s), target.tokens_per_draft) for target in measured.targets]
    star = Star(targets, SampledService({1: measured.services_s}), hub.policy)
    found = simulate(star, _ROUNDS_PER_TARGET * len(targets), seed)
    return Expected(found.tokens_per_s, found.utilisation)
