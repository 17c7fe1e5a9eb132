"""What the hub observes of a target's rounds, and when it calls a path degraded."""

from __future__ import annotations

import pytest

from starsd_edge.telemetry.latency import Latency

VERIFY_S = 0.03


def rounds(latency: Latency, count: int, link_s: float, tells: bool = True) -> None:
    for _ in range(count):
        latency.returned(link_s + VERIFY_S, VERIFY_S if tells else 0.0)


def test_the_link_is_what_the_targets_own_time_leaves_of_the_return() -> None:
    latency = Latency()
    rounds(latency, 20, 0.05)
    assert latency.returns.smoothed_s == pytest.approx(0.08)
    assert latency.link.smoothed_s == pytest.approx(0.05)


def test_a_target_that_claims_more_time_than_passed_has_a_link_of_nothing() -> None:
    latency = Latency()
    latency.returned(0.05, 9.0)
    assert latency.link.smoothed_s == 0.0
    assert latency.returns.smoothed_s == 0.05


@pytest.mark.parametrize("return_s", [-0.001, 10.5, float("inf"), float("nan")])
def test_a_pause_is_no_round(return_s: float) -> None:
    latency = Latency()
    latency.returned(return_s, 0.0)
    assert latency.returns.samples == 0


@pytest.mark.parametrize("tells", [True, False])
def test_a_path_that_becomes_slow_is_degraded_within_a_few_rounds_and_recovers(tells: bool) -> None:
    latency = Latency()
    rounds(latency, 40, 0.01, tells)
    assert not latency.path.degraded
    rounds(latency, 4, 0.09, tells)
    assert latency.path.degraded
    usual_ms = 10.0 if tells else 40.0
    assert latency.path.told.startswith(f"{usual_ms + 80:.1f} ms, usually ")
    assert latency.path.usual_s == pytest.approx(usual_ms / 1e3, rel=0.02)
    rounds(latency, 40, 0.09, tells)
    assert latency.path.degraded
    rounds(latency, 4, 0.01, tells)
    assert not latency.path.degraded


def test_one_slow_round_degrades_nothing() -> None:
    latency = Latency()
    rounds(latency, 40, 0.01)
    rounds(latency, 1, 3.0)
    assert not latency.path.degraded


def test_jitter_of_a_short_link_is_not_worth_a_word() -> None:
    latency = Latency()
    for number in range(400):
        rounds(latency, 1, 0.0002 if number // 20 % 2 else 0.003)
        assert not latency.path.degraded


def test_what_lasts_becomes_usual() -> None:
    latency = Latency()
    rounds(latency, 40, 0.01)
    rounds(latency, 300, 0.09)
    assert not latency.path.degraded
    assert latency.path.usual_s == pytest.approx(0.09)


def test_verify_time_is_that_of_the_rounds_between_two_reports() -> None:
    latency = Latency()
    for rounds_so_far, verify_us in ((100, 9_000_000), (110, 9_300_000), (110, 9_300_000), (120, 9_600_000)):
        latency.reported(rounds_so_far, verify_us)
    assert latency.verify.samples == 2
    assert latency.verify.smoothed_s == pytest.approx(0.03)


def test_reports_that_make_no_sense_are_passed_over() -> None:
    latency = Latency()
    for rounds_so_far, verify_us in ((100, 9_000_000), (50, 1), (60, 0), (61, (1 << 62) - 1)):
        latency.reported(rounds_so_far, verify_us)
    assert latency.verify.smoothed_s <= 10.0
