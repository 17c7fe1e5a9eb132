"""A duration is smoothed while it is steady, followed at once when it changes, and unmoved by what happens once."""

from __future__ import annotations

import random

import pytest

from starsd_edge.telemetry.rtt import Change, TrackedDuration

JITTERS = [0.0, 0.05, 0.1, 0.2]


def after(*stretches: tuple[int, float], jitter: float = 0.0, seed: int = 3) -> tuple[TrackedDuration, list[int]]:
    """The estimate after so many samples of each level, and after which of them a change was told."""
    tracked, told, chance = TrackedDuration(), [], random.Random(seed)
    for count, level in stretches:
        for _ in range(count):
            if tracked.add(level * chance.uniform(1 - jitter, 1 + jitter)) is not None:
                told.append(tracked.samples)
    return tracked, told


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize(("before", "now"), [(0.04, 0.12), (0.2, 0.02), (0.012, 0.06), (0.06, 0.025), (0.1, 0.001)])
def test_a_step_is_followed_within_a_few_rounds_and_leaves_no_large_variance(
    before: float, now: float, jitter: float
) -> None:
    tracked, told = after((60, before), (5, now), jitter=jitter)
    assert len(told) == 1
    assert 62 <= told[0] <= 65
    assert tracked.smoothed_s == pytest.approx(now, rel=0.15)
    assert tracked.deviation_s <= 0.2 * now


def test_a_change_tells_both_levels() -> None:
    tracked, _ = after((60, 0.04), (2, 0.12))
    change = tracked.add(0.12)
    assert isinstance(change, Change)
    assert change.before_s == pytest.approx(0.04, rel=0.1)
    assert change.after_s == pytest.approx(0.12)


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("wild", [0.0, 0.12, 5.0])
def test_a_single_outlier_changes_nothing(wild: float, jitter: float) -> None:
    for seed in range(20):
        tracked, told = after((60, 0.04), (1, wild), (6, 0.04), jitter=jitter, seed=seed)
        assert told == []
        assert tracked.smoothed_s == pytest.approx(0.04, rel=0.15)


def test_outliers_now_and_then_change_nothing() -> None:
    tracked, told = after(*[(9, 0.04), (1, 0.4)] * 50, jitter=0.05)
    assert told == []
    assert tracked.smoothed_s < 0.06


@pytest.mark.parametrize("jitter", [0.1, 0.3, 0.5])
def test_jitter_is_no_change(jitter: float) -> None:
    assert after((2000, 0.05), jitter=jitter)[1] == []


def test_a_step_early_in_a_session_is_followed_too() -> None:
    tracked, _ = after((6, 0.03), (6, 0.09), jitter=0.05)
    assert tracked.smoothed_s == pytest.approx(0.09, rel=0.15)


def test_a_slow_drift_is_followed_without_an_alarm() -> None:
    tracked, told = after(*((4, 0.04 + 0.0004 * step) for step in range(50)), jitter=0.02)
    assert told == []
    assert tracked.smoothed_s == pytest.approx(0.06, rel=0.1)


def test_while_it_is_steady_it_is_the_estimate_of_rfc_6298() -> None:
    """From the ninth sample on the gains are those of the RFC: 1/8 and 1/4."""
    tracked, _ = after((20, 0.1), jitter=0.05)
    smoothed_s, deviation_s = tracked.smoothed_s, tracked.deviation_s
    tracked.add(0.101)
    assert tracked.deviation_s == pytest.approx(deviation_s + (abs(0.101 - smoothed_s) - deviation_s) / 4)
    assert tracked.smoothed_s == pytest.approx(smoothed_s + (0.101 - smoothed_s) / 8)


def test_the_first_sample_is_all_that_is_known() -> None:
    tracked, _ = after((1, 0.1))
    assert (tracked.samples, tracked.smoothed_s, tracked.deviation_s) == (1, 0.1, 0.05)
