"""A finished plan as data: for tables and for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starsd_edge.planning.law import LinkCost
from starsd_edge.planning.memory import GIB, Fit
from starsd_edge.planning.plan import AtTargets, Knee
from starsd_edge.planning.simulator import Percentiles
from starsd_edge.speculation.tree import DraftShape


@dataclass(frozen=True)
class Traffic:
    """Traffic of one target with the hub to itself.

    Attributes:
        up_bytes, down_bytes: bytes of a round to the hub and from it.
        rounds_per_s: rounds of the target in a second.
    """

    up_bytes: float
    down_bytes: float
    rounds_per_s: float


@dataclass(frozen=True)
class MemoryPlan:
    """What an accelerator holds.

    Attributes:
        accelerator_bytes: bytes that the accelerator has for targets.
        context: tokens of each target's context.
        fit: how many targets it holds.
        hub_bytes: bytes that a hub takes for `hub_sessions` sessions.
    """

    accelerator_bytes: float
    context: int
    fit: Fit
    hub_bytes: float
    hub_sessions: int


@dataclass(frozen=True)
class StarPlan:
    """A finished plan of a star.

    Attributes:
        sources: where each group of numbers comes from.
        is_measured: S and Z were measured, so drafts are what they were, and nothing is said of other links.
        break_even_rtt_s: round-trip time in seconds at which one target gains nothing; None where it is not known.
    """

    sources: Mapping[str, str]
    is_measured: bool
    knee: Knee
    rows: Sequence[AtTargets]
    links: Sequence[tuple[LinkCost, Knee]]
    break_even_rtt_s: float | None
    traffic: Traffic | None
    memory: MemoryPlan | None

    def as_data(self) -> dict[str, object]:
        """The plan for JSON: times in milliseconds, sizes in bytes, rates in tokens per second."""
        return {
            "sources": dict(self.sources),
            "one_target": {
                **_knee_data(self.knee, None if self.is_measured else self.knee.alone.shape),
                "break_even_rtt_ms": None if self.break_even_rtt_s is None else 1e3 * self.break_even_rtt_s,
            },
            "targets": [_row_data(row) for row in self.rows],
            "links": [
                {"rtt_ms": 1e3 * link.rtt_s, "mbit": 8e-6 * link.up_bytes_per_s, **_knee_data(found, found.alone.shape)}
                for link, found in self.links
            ],
            "traffic": None if self.traffic is None else _traffic_data(self.traffic),
            "memory": None if self.memory is None else _memory_data(self.memory),
        }


def written(shape: DraftShape) -> str:
    """A shape as text: NODESxDEPTHxBRANCHING."""
    return f"{shape.max_nodes}x{shape.max_depth}x{shape.branching}"


def shapes_written(shapes: Sequence[DraftShape]) -> str:
    """How many targets get which: "4 of 5x5x1, 2 of 4x4x1", the largest first; "plain" where there is none."""
    distinct = sorted(set(shapes), key=lambda shape: (-shape.max_depth, -shape.max_nodes))
    if len(distinct) == 1:
        return written(distinct[0])
    return ", ".join(f"{shapes.count(shape)} of {written(shape)}" for shape in distinct) or "plain"


def _knee_data(found: Knee, shape: DraftShape | None) -> dict[str, object]:
    alone = found.alone
    spot = found.sweet_spot
    return {
        "draft": None if shape is None else written(shape),
        "tokens_per_round": alone.tokens,
        "accepted_per_round": alone.tokens - 1,
        "draft_ms": 1e3 * alone.draft_s,
        "return_ms": 1e3 * alone.return_s,
        "tokens_per_s": alone.rate,
        "gain_over_plain": found.gain,
        "targets_full": found.full,
        "targets_break_even": found.most,
        "sweet_spot": None if spot is None else list(spot),
    }


def _row_data(row: AtTargets) -> dict[str, object]:
    simulated = row.simulated
    return {
        "targets": row.targets,
        "drafting": row.drafting,
        "drafts": shapes_written(row.shapes) if row.shapes else None,
        "tokens_per_s": row.tokens_per_s,
        "utilisation": row.utilisation,
        "least_gain_over_plain": row.gain,
        "simulated_tokens_per_s": row.simulated_tokens_per_s,
        "simulated_utilisation": None if simulated is None else simulated.utilisation,
        "simulated_wait_ms": None if simulated is None else _percentile_data(simulated.waits),
        "simulated_round_ms": None if simulated is None else _percentile_data(simulated.rounds),
        "simulated_batch": None if simulated is None else simulated.mean_batch,
    }


def _percentile_data(found: Percentiles) -> dict[str, float]:
    return {"p50": 1e3 * found.p50, "p90": 1e3 * found.p90, "p99": 1e3 * found.p99}


def _traffic_data(traffic: Traffic) -> dict[str, float]:
    return {
        "up_bytes_per_round": traffic.up_bytes,
        "down_bytes_per_round": traffic.down_bytes,
        "up_mbit_per_s": 8e-6 * traffic.up_bytes * traffic.rounds_per_s,
        "down_mbit_per_s": 8e-6 * traffic.down_bytes * traffic.rounds_per_s,
    }


def _memory_data(memory: MemoryPlan) -> dict[str, object]:
    return {
        "accelerator_gib": memory.accelerator_bytes / GIB,
        "context": memory.context,
        "targets_with_co_located_draft": memory.fit.co_located,
        "targets_with_hub": memory.fit.star,
        "context_of_one_with_co_located_draft": memory.fit.co_located_context,
        "context_of_one_with_hub": memory.fit.star_context,
        "hub_gib": memory.hub_bytes / GIB,
        "hub_sessions": memory.hub_sessions,
    }
