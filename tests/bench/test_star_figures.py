"""From what targets and hub noted to figures: windows, S and Z, fairness, the law beside them."""

from __future__ import annotations

import pytest

from starsd_edge.bench.device_times import LinkTimes
from starsd_edge.bench.star_figures import Expected, StarResults, has_law, is_serial, law_of, simulated, star_figures
from starsd_edge.bench.star_plan import (
    BASELINES,
    COLOCATED,
    HEAD,
    LAW,
    OURS,
    PLAIN,
    POLICY,
    PUBLISHED,
    QUICK_SWEEPS,
    RTT,
    SCALE,
    SWEEPS,
    WRONG,
    StarSettings,
    points_of,
    spread_links,
)  # fmt: skip
from starsd_edge.bench.star_runs import (
    DraftMark,
    HubPlan,
    HubUse,
    MeasuredPoint,
    Point,
    TargetLog,
    TargetSeen,
    least_own_rate,
    seen_between,
)  # fmt: skip
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.hub_facts import DrafterFacts, HubFacts, TimeUse
from starsd_edge.telemetry.rounds import HUB, Round, RoundStats

SETTINGS = StarSettings(
    targets=(1, 16),
    law_targets=(1, 2, 4, 8),
    link=LinkTimes(0.001),
    rtts_s=(0.001, 0.05),
    shape=DraftShape(8, 4, 4),
    shapes=(DraftShape(1, 1),),
    policies=("fifo", "drr"),
    policy="fifo",
    max_batch=16,
    draft_s=0.012,
    draft_growth=0.125,
    verify_s=0.035,
)


def mark(asked_at: float) -> DraftMark:
    return DraftMark(asked_at, 0.008, 0.012)


def test_a_window_counts_rounds_by_their_end_and_rates_from_the_first_to_the_last() -> None:
    log = TargetLog(rounds=[(at, Round(HUB, emitted=2, accepted=1)) for at in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)])
    seen = seen_between(log, 1.0, 3.0)
    assert seen.stats.rounds == 4
    assert seen.tokens_per_s == pytest.approx(3 * 2 / 1.5)
    assert seen.periods_s == pytest.approx([0.5, 0.5, 0.5])
    assert seen_between(log, 9.0, 10.0).tokens_per_s == 0


def test_z_is_what_passes_between_two_requests_without_the_time_on_the_hub() -> None:
    rounds = [(at, Round(HUB, emitted=2)) for at in (0.06, 0.16, 0.36)]
    log = TargetLog(rounds, [mark(0.0), mark(0.1), mark(0.3), mark(9.0)])
    seen = seen_between(log, 0.0, 1.0)
    assert seen.services_s == pytest.approx([0.012] * 3)
    assert seen.returns_s == pytest.approx([0.08, 0.18])
    assert seen.tokens_per_draft == pytest.approx(2.0)


def test_hub_use_is_the_difference_of_its_books() -> None:
    before = HubFacts(time=TimeUse(1.0, 1.0, 0.0), drafters=[DrafterFacts("eagle", drafts=10, passes=10)])
    after = HubFacts(time=TimeUse(1.6, 1.3, 0.1), drafters=[DrafterFacts("eagle", drafts=40, passes=25)])
    use = HubUse.between(before, after)
    assert (use.busy, use.idle, use.lag) == pytest.approx((0.6, 0.3, 0.1))
    assert (use.drafts_per_s, use.passes_per_s, use.busy_s_per_draft) == pytest.approx((30, 15, 0.02))


def seen(rate: float, services: int = 10, draft_s: float = 0.012, return_s: float = 0.036) -> TargetSeen:
    stats = RoundStats()
    stats.add(Round(HUB, drafted=5, accepted=1, levels_offered=2, emitted=2, bytes_up=900, bytes_down=60))
    return TargetSeen(rate, stats, [0.1] * services, [draft_s] * services, [return_s] * services, 2.0)


def run_of(point: Point, per_target: float, hub: HubUse | None = None, services: int = 10) -> MeasuredPoint:
    return MeasuredPoint(point, [seen(per_target, services) for _ in point.links], hub)


def test_the_law_from_measured_times() -> None:
    point = Point(LAW, OURS, HubPlan(), (LinkTimes(0.001),) * 8, DraftShape(5, 5))
    measured = run_of(point, 20.0)
    assert has_law(measured)
    assert law_of(measured).tokens_per_s == pytest.approx(2 / 0.012)
    assert law_of(measured).utilisation == 1.0
    unequal = Point(LAW, OURS, HubPlan(), spread_links(3), DraftShape(5, 5))
    assert not has_law(run_of(unequal, 20.0))
    assert not has_law(run_of(Point(LAW, PLAIN, None, (LinkTimes(0.0),), DraftShape(5, 5)), 20.0))


def test_the_simulator_from_measured_times() -> None:
    pytest.importorskip("simpy")
    points = (Point(LAW, OURS, HubPlan(), (LinkTimes(0.001),) * count, DraftShape(5, 5)) for count in (1, 8))
    alone, many = (simulated(run_of(point, 20.0), seed=1) for point in points)
    assert (alone.tokens_per_s, alone.utilisation) == pytest.approx((2 / 0.048, 0.25), rel=0.02)
    assert (many.tokens_per_s, many.utilisation) == pytest.approx((2 / 0.012, 1.0), rel=0.02)
    batched = Point(LAW, OURS, HubPlan(max_batch=4), (LinkTimes(0.001),), DraftShape(5, 5))
    assert not is_serial(run_of(batched, 20.0))


def test_the_smallest_share_of_an_own_rate() -> None:
    point = Point(POLICY, OURS, HubPlan(), (LinkTimes(0.0),) * 2, DraftShape(5, 5))
    measured = MeasuredPoint(point, [seen(1.0), seen(1.0, services=4)], None)
    assert least_own_rate(measured, [0.05, 0.08]) == pytest.approx(0.5)


def test_every_sweep_has_points_and_the_published_design_is_what_it_is() -> None:
    for sweep in SWEEPS:
        points = points_of(sweep, SETTINGS)
        assert points
        assert {point.sweep for point in points} == {sweep}
    published = [point for point in points_of(SCALE, SETTINGS) if point.system == PUBLISHED]
    assert [point.targets for point in published] == [1, 16]
    assert {point.hub for point in published} == {HubPlan("fifo", 1, DraftShape(8, 5, 4), SETTINGS.device)}
    own_time = [point for point in points_of(HEAD, SETTINGS) if point.system == PUBLISHED]
    assert {point.hub for point in own_time} == {HubPlan("fifo", 1, DraftShape(8, 5, 4))}
    assert {point.shape for point in published} == {DraftShape(8, 5, 4)}
    ours = [point for point in points_of(SCALE, SETTINGS) if point.system == OURS]
    assert {point.hub for point in ours} == {HubPlan("fifo", 16, times=SETTINGS.device)}
    assert {point.targets for point in points_of(RTT, SETTINGS)} == {1, 11}
    assert set(QUICK_SWEEPS) < set(SWEEPS)


def test_unequal_links_spread_from_near_to_far() -> None:
    rtts = [link.rtt_s for link in spread_links(32)]
    assert (rtts[0], rtts[-1]) == pytest.approx((0.0001, 0.2))
    assert rtts == sorted(rtts)


def every_point() -> list[Point]:
    return [point for sweep in QUICK_SWEEPS for point in points_of(sweep, SETTINGS)]


def rate_of(point: Point) -> float:
    """A star that does what the law says; ours is three times as fast as the published one."""
    if point.system == PLAIN:
        return 1 / 0.035
    if point.system == WRONG:
        return 0.98 / 0.035
    count = point.targets
    rate = 2 / max(0.048 + point.links[0].rtt_s - 0.001, count * 0.012)
    return 3 * rate if point.sweep == SCALE and point.system == OURS else rate


def test_the_figures() -> None:
    use = HubUse(0.9, 0.099, 0.001, 75.0, 75.0, 0.012)
    runs = [run_of(point, rate_of(point), None if point.hub is None else use) for point in every_point()]
    law_points = [point for point in every_point() if point.sweep == LAW]
    simulated = {point: Expected(1.02 * point.targets * rate_of(point), 0.9) for point in law_points}
    figures = {figure.name: figure for figure in star_figures(StarResults(runs, simulated))}
    assert {figure.label for figure in figures.values()} == {"timing backend"}
    expected = {
        "system_over_published_n16": 3.0,
        "system_over_published_n1": 3.0,
        "idle_while_work_waits": 0.001,
        "rtt50_over_rtt1": 1.0,
        "rtt50_over_rtt1_targets": 11,
        "rtt50_over_rtt1_n1": 0.048 / 0.097,
        "wrong_drafter_over_plain": 0.98,
        "jain_drr": 1.0,
        "jain_fifo": 1.0,
        "starved_drr": 0.0,
        "least_own_rate_drr": 0.048 / 0.1,
        "law_knee": 4.0,
        "law_knee_measured": 4.0,
        "law_plateau_over_e_by_s": 1.0,
        "law_throughput_error_worst": 0.0,
        "simulator_throughput_error_median": 0.02,
        "simulator_utilisation_error_worst": 0.0,
        "tokens_per_round_n16": 2.0,
        "accepted_per_round_n16": 1.0,
        "published_tokens_per_round_n16": 2.0,
        "inexact_answers": 0.0,
        "bytes_up_per_round": 900.0,
        "law_idle_gap_ms_n4": 1e3 * 0.099 / 75,
    }
    assert {name: figures[name].value for name in expected} == pytest.approx(expected, abs=1e-9)


def test_sweeps_that_were_not_run_have_no_figures() -> None:
    names = {figure.name for figure in star_figures(StarResults([]))}
    assert names == {"inexact_answers"}
    plain = run_of(Point(BASELINES, PLAIN, None, (LinkTimes(0.0),), DraftShape(5, 5)), 28.0)
    assert StarResults([plain]).baseline(COLOCATED) is None
    assert {"plain_tokens_per_s"} < {figure.name for figure in star_figures(StarResults([plain]))} | {""}
