"""Tokens per second of whole stars in made-up time, against the published design and against plain decoding."""

from __future__ import annotations

import pytest

from starsd_edge.bench.device_times import ModelDraftTimes
from starsd_edge.planning.law import targets_without_idling
from tests.support.whole_star import PLAIN_S, Course, decode, plain_tokens_per_s, published
from tests.support.whole_star_hub import StarPlan

HUB = ModelDraftTimes(0.012, growth=0.125, levels=5)
"""12 ms for one draft 5 levels deep, an eighth more for each further one in the same pass."""
SLOW = ModelDraftTimes(0.04, growth=0.25, levels=5)


def over_plain(plan: StarPlan, course: Course, begin_s: float, end_s: float) -> float:
    """Times plain decoding, printed."""
    ratio = course.tokens_per_s(begin_s, end_s) / plain_tokens_per_s(plan.targets)
    print(f"{plan.targets} targets, {begin_s:g} to {end_s:g} s: {ratio:.3f} x plain")
    return ratio


@pytest.mark.parametrize(("targets", "least", "begin_s", "end_s"), [(1, 1.0, 4, 12), (4, 1.0, 3, 6), (16, 3.0, 2, 3.5)])
def test_a_star_is_as_fast_as_the_published_design_and_where_many_share_the_hub_several_times_as_fast(
    targets: int, least: float, begin_s: float, end_s: float
) -> None:
    ours = decode(StarPlan(targets, HUB), end_s).tokens_per_s(begin_s, end_s)
    theirs = decode(published(targets, HUB), end_s).tokens_per_s(begin_s, end_s)
    print(f"{targets} targets: {ours:.1f} tokens/s, {ours / theirs:.2f} x published")
    assert ours >= least * theirs
    assert ours >= 1.3 * plain_tokens_per_s(targets)


def test_far_too_many_targets_are_as_fast_as_without_a_hub() -> None:
    plan = StarPlan(64, SLOW)
    full = targets_without_idling(SLOW.pass_s([5] * plan.max_batch) / plan.max_batch, PLAIN_S)
    assert plan.targets > 10 * full, "even in full batches"
    assert over_plain(plan, decode(plan, 2.5), 1.5, 2.5) >= 0.95


@pytest.mark.parametrize("targets", [1, 12])
def test_a_drafter_that_turns_wrong_under_load_is_left(targets: int) -> None:
    plan = StarPlan(targets, HUB, right_until_s=1.5)
    course = decode(plan, 5.0)
    assert over_plain(plan, course, 0.5, 1.5) > 1.1, "as long as it was right"
    assert over_plain(plan, course, 4.0, 5.0) >= 0.95


@pytest.mark.parametrize("targets", [4, 12])
def test_a_hub_that_becomes_slow_under_load_is_left(targets: int) -> None:
    plan = StarPlan(targets, HUB, device_later=ModelDraftTimes(0.12, 0.125, 5), later_s=1.5)
    course = decode(plan, 4.0)
    assert over_plain(plan, course, 0.5, 1.5) > 1.1, "as long as it was quick"
    assert over_plain(plan, course, 3.0, 4.0) >= 0.95


def test_the_same_star_does_the_same_again() -> None:
    one, other = (decode(StarPlan(4, HUB), 1.5).emitted for _ in range(2))
    assert one == other
