"""The verify curve between, at and beyond what was measured."""

from __future__ import annotations

import pytest

from starsd_edge.planning.curve import VerifyCurve, VerifyCurves

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
    assert [several.at(rows) for rows in (1, 3, 6, 12)] == pytest.approx([0.050, 0.053, 0.065, 0.095])


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
