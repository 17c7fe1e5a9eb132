"""N targets at one hub against numbers worked out by hand and the published curves (S = 12 ms, Z = 36 ms)."""

from __future__ import annotations

import pytest

from starsd_edge.planning.law import (
    batched_round,
    idle_s,
    round_s,
    utilisation,
    wait_s,
)
from tests.support.repairman import exponential_utilisation

S, Z = 0.012, 0.036


@pytest.mark.parametrize(
    ("targets", "took_ms", "busy", "idle_ms", "wait_ms"),
    [(1, 48, 0.25, 36, 0), (3, 48, 0.75, 12, 0), (4, 48, 1, 0, 0), (6, 72, 1, 0, 24)],
)
def test_the_deterministic_law(targets: int, took_ms: float, busy: float, idle_ms: float, wait_ms: float) -> None:
    assert round_s(targets, S, Z) == pytest.approx(took_ms / 1e3)
    assert utilisation(targets, S, Z) == pytest.approx(busy)
    assert idle_s(targets, S, Z) == pytest.approx(idle_ms / 1e3)
    assert wait_s(targets, S, Z) == pytest.approx(wait_ms / 1e3, abs=1e-12)
    assert targets * S + idle_s(targets, S, Z) == pytest.approx(round_s(targets, S, Z)), "T = N S + idle"


def test_the_exponential_curve() -> None:
    curve = [exponential_utilisation(targets, S, Z) for targets in (1, 2, 3, 4, 5, 6, 8)]
    assert curve == pytest.approx([0.25, 0.47, 0.65, 0.79, 0.89, 0.948, 0.992], abs=0.006)


@pytest.mark.parametrize(("targets", "rounds_per_s"), [(8, 142), (16, 258), (32, 407)])
def test_batches_relieve_the_hub_as_in_the_table(targets: int, rounds_per_s: float) -> None:
    took, batch = batched_round(targets, lambda size: 0.0105 + 0.0015 * size, Z, 64)
    assert targets / took == pytest.approx(rounds_per_s, rel=0.02)
    assert 1 < batch < targets


def test_without_batches_and_with_full_ones_a_round_waits_for_all_others() -> None:
    assert batched_round(8, lambda size: S * size, Z, 1) == pytest.approx((0.096, 1))
    full = batched_round(100, lambda size: 0.010 + 0.001 * size, Z, 4)
    assert full == pytest.approx((100 * 0.014 / 4, 4))
