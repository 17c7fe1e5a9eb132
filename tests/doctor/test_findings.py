"""Findings as data: the exit code, the summary and the object for scripts."""

from __future__ import annotations

import json

import pytest

from starsd_edge.bench.figures import Figure
from starsd_edge.doctor.findings import REPORT_VERSION, Finding, Findings, Level

ALL = [Finding("check", level, "found") for level in Level]


@pytest.mark.parametrize("level", list(Level))
def test_only_a_failure_counts(level: Level) -> None:
    assert Findings([Finding("a", Level.OK, "x"), Finding("b", level, "y")]).exit_code == (level is Level.FAILURE)


def test_nothing_found_is_no_failure() -> None:
    assert Findings([]).exit_code == 0


def test_the_summary_counts_the_worst_first() -> None:
    assert Findings([*ALL, ALL[0]]).summary == "1 failure, 1 warning, 1 note, 2 ok, 1 not run"
    assert Findings([ALL[2], ALL[2], ALL[4], ALL[4]]).summary == "2 warnings, 2 not run"


def test_scripts_get_one_object_on_one_line() -> None:
    text = Findings([Finding("disk", Level.WARNING, "little", "free some")], [Figure("x_ms", 1.23456789, "ms", "CPU")])
    written = text.to_json()
    assert written.count(b"\n") == 1
    content = json.loads(written)
    assert content["version"] == REPORT_VERSION
    assert content["exit_code"] == 0
    assert content["checks"] == [{"name": "disk", "level": "warning", "finding": "little", "remedy": "free some"}]
    assert content["figures"] == [{"name": "x_ms", "value": 1.234568, "unit": "ms", "label": "CPU"}]
