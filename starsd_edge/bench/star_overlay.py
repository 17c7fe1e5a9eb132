"""What theory says of a point that was run, from the S and Z that were measured there. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starsd_edge.bench.star_runs import Measured
from starsd_edge.planning.law import tokens_per_s


@dataclass(frozen=True)
class Expected:
    """One prediction of a point.

    Attributes:
        tokens_per_s: of all targets together, bonus tokens included.
        utilisation: the hub's busy share.
    """

    tokens_per_s: float
    utilisation: float


Predict = Callable[[Measured], Expected]


def has_law(measured: Measured) -> bool:
    """Whether the closed form speaks of such a point: equal targets, one draft at a time, and all drafts waited for."""
    point = measured.point
    return (
        point.hub is not None
        and point.hub.max_batch == 1
        and point.wait_s is not None
        and len(set(point.links)) == 1
        and bool(measured.returns_s)
    )


def law_of(measured: Measured) -> Expected:
    """The closed form, for a point that has one: X = N E / max(S + Z, N S), U = min(1, N S / (S + Z))."""
    count, tokens = len(measured.targets), measured.stats.tokens_per_round
    draft_s, return_s = measured.mean_service_s, measured.mean_return_s
    return Expected(
        count * tokens_per_s(tokens, draft_s, return_s, count),
        min(1.0, count * draft_s / (draft_s + return_s)),
    )
