"""The form of figures: what stands in the file, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starsd_edge.bench.figures import (
    CPU,
    GPU,
    BenchReport,
    Figure,
    Spread,
    check_report_path,
    label_of,
    percentile,
    write_report,
)
from starsd_edge.errors import UsageError

REPORT = BenchReport(
    [
        Figure.median("plain_tokens_per_s", [40.0, 38.0, 41.5], "tokens/s", CPU),
        Figure("tokens_per_round", 2.5, "", CPU),
    ],
    {"cores": 2},
    {"repeats": 3},
)


def test_file_holds_figures_spread_machine_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, REPORT)
    assert json.loads(path.read_text()) == {
        "figures": [
            {"name": "plain_tokens_per_s", "value": 40.0, "unit": "tokens/s", "label": "CPU"},
            {"name": "tokens_per_round", "value": 2.5, "unit": "", "label": "CPU"},
        ],
        "spread": {"plain_tokens_per_s": {"low": 38.0, "high": 41.5, "samples": 3}},
        "machine": {"cores": 2},
        "settings": {"repeats": 3},
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_report_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    write_report(path, REPORT)
    assert json.loads(path.read_text())["settings"] == {"repeats": 3}


def test_failed_write_leaves_the_older_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_report(path, BenchReport([], {}, {"what": object()}))
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.json", "old")]


def test_median_keeps_its_spread() -> None:
    assert REPORT["plain_tokens_per_s"] == Figure("plain_tokens_per_s", 40.0, "tokens/s", CPU, Spread(38.0, 41.5, 3))
    assert REPORT.get("nothing") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figure_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValueError, match="broken"):
        Figure("broken", value, "", CPU)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.001, 1), (0.991, 100)])
def test_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_percentile_of_one_sample_is_it() -> None:
    assert percentile([3.5], 0.99) == 3.5


def test_labels_follow_the_device() -> None:
    assert (label_of("cpu"), label_of("cuda"), label_of("jetson")) == (CPU, GPU, GPU)


def test_bad_places_for_a_report_are_refused_before_measuring(tmp_path: Path) -> None:
    check_report_path(tmp_path / "report.json")
    with pytest.raises(UsageError, match="is a directory"):
        check_report_path(tmp_path)
    with pytest.raises(UsageError, match="there is no directory"):
        check_report_path(tmp_path / "nowhere" / "report.json")
