"""What a verify pass takes by its rows: measured curves, and the curve that a target learns from its rounds."""

from __future__ import annotations

import pytest

from starsd_edge.planning.pass_times import (
    EXPECTED_ROUNDS,
    ROW_SHARE,
    PassTimes,
    VerifyCurve,
    VerifyCurves,
)

CURVE = VerifyCurve({1: 0.020, 5: 0.024, 9: 0.040})


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.020), (0, 0.020), (3, 0.022), (5, 0.024), (6, 0.028), (9, 0.040), (11, 0.048)]
)
def test_it_runs_through_what_was_measured_in_straight_lines(rows: float, seconds: float) -> None:
    assert CURVE.at(rows) == pytest.approx(seconds)


def test_ratios_are_to_a_pass_over_one_row() -> None:
    assert CURVE.ratio(5) == pytest.approx(1.2)
    assert VerifyCurve({1: 0.5}).ratio(8) == 1


def test_noise_only_adds_to_what_passes_take() -> None:
    curve = VerifyCurve.through({5: [0.9, 0.030, 0.031], 1: [0.020, 0.5], 2: [0.019, 0.019]})
    assert curve.seconds == {1: 0.020, 2: 0.020, 5: 0.030}


@pytest.mark.parametrize("seconds", [{}, {2: 0.1}, {1: 0.0}, {1: 0.1, 2: -1.0}, {1: 0.1, 0: 0.1}])
def test_what_is_no_curve_is_refused(seconds: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no verify curve"):
        VerifyCurve(seconds)


def test_a_curve_of_rounds_needs_no_round_of_one_row() -> None:
    one = VerifyCurve.of_rounds({6: 0.046})
    assert [one.at(rows) for rows in (1, 6, 11)] == pytest.approx([0.040, 0.046, 0.052])
    several = VerifyCurve.of_rounds({3: 0.053, 9: 0.080, 6: 0.065})
    assert [several.at(rows) for rows in (1, 3, 6, 12)] == pytest.approx([0.050, 0.053, 0.065, 0.0935])


def test_no_round_takes_longer_than_one_over_more_rows() -> None:
    curve = VerifyCurve.of_rounds({1: 0.030, 2: 0.900, 4: 0.034})
    assert [curve.at(rows) for rows in (1, 2, 4)] == pytest.approx([0.030, 0.034, 0.034])


CURVES = VerifyCurves({16: VerifyCurve({1: 0.02, 5: 0.03}), 216: VerifyCurve({1: 0.04, 9: 0.12})})


@pytest.mark.parametrize(("committed", "one", "five"), [(0, 0.02, 0.03), (16, 0.02, 0.03), (116, 0.03, 0.055)])
def test_between_lengths_a_curve_lies_between_theirs(committed: int, one: float, five: float) -> None:
    curve = CURVES.at(committed)
    assert [curve.at(1), curve.at(5)] == pytest.approx([one, five])


def test_beyond_the_lengths_measured_the_nearest_curve_stands() -> None:
    assert CURVES.at(9000) == CURVES.by_committed[216]


def test_no_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="no verify curves"):
        VerifyCurves({})


def timed(*rounds: tuple[int, float]) -> PassTimes:
    times = PassTimes()
    for rows, seconds in rounds:
        times.add(rows, seconds)
    return times


def test_nothing_is_known_at_first() -> None:
    times = PassTimes()
    assert not times.is_known
    assert times.curve(3).tolist() == [0, 0, 0]
    assert times.plain_s == 0


def test_one_width_tells_of_the_others_by_what_a_row_usually_costs() -> None:
    times = timed(*[(5, 1.12)] * 3)
    assert times.curve(9) == pytest.approx([1 + ROW_SHARE * row for row in range(9)])


def test_between_widths_and_beyond_them_lies_a_line() -> None:
    times = timed(*[(1, 1.0), (3, 1.2), (5, 2.0)] * 3)
    assert times.curve(7) == pytest.approx([1.0, 1.1, 1.2, 1.6, 2.0, 2.25, 2.5])


def test_a_hiccup_does_not_count() -> None:
    times = timed(*[(1, 1.0)] * 4, (1, 9.0), *[(4, 1.3)] * 3, (4, 7.0))
    assert times.plain_s == 1.0
    assert times.curve(4)[-1] == pytest.approx(1.3)


def test_a_new_width_is_believed_once_it_was_tried() -> None:
    times = timed(*[(1, 1.0)] * 3, (5, 30.0), (5, 1.2))
    assert times.curve(5)[-1] == pytest.approx(1 + 4 * ROW_SHARE)
    times.add(5, 1.2)
    assert times.curve(5)[-1] == pytest.approx(1.2)


def test_more_rows_never_take_less() -> None:
    times = timed(*[(1, 1.5), (5, 1.1)] * 3)
    assert times.curve(5) == pytest.approx([1.1] * 5)


def test_a_machine_that_slows_down_is_followed() -> None:
    times = timed(*[(1, 1.0)] * 20, *[(1, 3.0)] * 3)
    assert times.plain_s == 3.0


def test_a_width_not_seen_for_long_is_forgotten() -> None:
    times = timed(*[(9, 5.0)] * 3, *[(1, 1.0)] * 200)
    assert times.curve(9)[-1] == pytest.approx(5.0)
    for _ in range(100):
        times.add(1, 1.0)
    assert times.curve(9)[-1] == pytest.approx(1 + 8 * ROW_SHARE)


def test_age_of_the_plain_step() -> None:
    times = timed((1, 1.0), (3, 1.0), (2, 1.0))
    assert times.plain_age == 2
    times.add(1, 1.0)
    assert times.plain_age == 0


def test_rounds_that_a_coarse_clock_does_not_see_took_some_time() -> None:
    times = timed(*[(1, 0.0), (5, -1e-9)] * 3)
    assert (times.curve(9) > 0).all()
    assert times.plain_s > 0


STEEP = VerifyCurve({1: 0.02, 5: 0.06, 9: 0.12})


def test_before_any_round_the_measured_curve_stands() -> None:
    times = PassTimes(STEEP)
    assert times.is_known
    assert times.plain_s == 0.02
    assert times.curve(9)[[0, 2, 4, 8]] == pytest.approx([0.02, 0.04, 0.06, 0.12])


def test_rounds_scale_what_they_have_not_seen_yet_and_stand_where_they_were() -> None:
    times = PassTimes(STEEP)
    for _ in range(3):
        times.add(1, 0.03)
        times.add(5, 0.033)
    assert times.curve(5)[[0, 4]] == pytest.approx([0.03, 0.033])
    assert times.curve(9)[8] == pytest.approx(0.12 * 0.033 / 0.06)
    assert (times.curve(16)[1:] >= times.curve(16)[:-1]).all()


def test_the_measured_curve_is_over_after_some_rounds() -> None:
    times = PassTimes(STEEP)
    for _ in range(EXPECTED_ROUNDS):
        assert times.expected is STEEP
        times.add(1, 0.02)
    assert times.expected is None
    assert times.curve(9)[8] == pytest.approx(0.02 * (1 + 8 * ROW_SHARE))
    times.expect(STEEP)
    assert times.expected is None, "the next answer does not bring it back"


def test_a_longer_text_brings_another_curve() -> None:
    times = PassTimes(STEEP)
    assert times.plain_s == 0.02
    times.expect(STEEP.scaled(2))
    assert times.plain_s == 0.04
