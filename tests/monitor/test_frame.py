"""Frames of a recorded feed, compared as text at several sizes; and what must hold at any size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from starsd_edge.telemetry.feed import Event, Snapshot
from starsd_edge.telemetry.hub_facts import HubFacts, Judgement, TargetFacts, TargetReport
from starsd_edge.telemetry.monitor.board import StarBoard, ViewState
from starsd_edge.telemetry.monitor.formats import (
    UNICODE,
    bar,
    clock,
    marks_for,
    milliseconds,
    number,
    percent,
    size,
    sparkline,
)
from starsd_edge.telemetry.monitor.frame import Sight, report
from tests.support.monitor_frames import (
    CASES,
    board_of,
    case_text,
    frame_text,
    golden,
    pressed,
    recorded,
    text_of,
)

HUGE = (1 << 62) - 1


@pytest.mark.parametrize("name", CASES)
def test_frames_of_the_recorded_feed(name: str) -> None:
    assert case_text(name) == golden(name).read_text(), "look, then run: python -m tests.support.monitor_frames"


def crowd(count: int) -> StarBoard:
    targets = [TargetFacts(f"orin-{number:03}", number=number, rtt_ms=float(number)) for number in range(1, count + 1)]
    return board_of([Snapshot(1, HubFacts(hub_id="h", uptime_s=5.0, targets=targets))])


@pytest.mark.parametrize("width", [40, 79, 80, 81, 100, 133, 200, 300])
@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("keys", ["", "j", "jd", "?"])
@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_frame_fills_the_screen_and_no_more(width: int, height: int, keys: str, count: int) -> None:
    board = crowd(count)
    lines = frame_text(board, pressed(keys, board), width, height).splitlines()
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width


def test_the_chosen_target_is_in_sight_however_many_there_are() -> None:
    board = crowd(200)
    for keys in ("j", "jjjjjjjjjjjjjjjjjjjj", "k", "kkkkkk"):
        text = frame_text(board, pressed(keys, board), 80, 24)
        assert text.count("▸") == 1


def test_numbers_of_a_lying_hub_do_not_break_the_picture() -> None:
    report_ = TargetReport(*([HUGE] * 8), "x" * 1000)
    drafted = Judgement(HUGE, HUGE, 1, HUGE, [1] * 100, [HUGE] * 100)
    target = TargetFacts("[bold]\x1b[2J名前" * 50, "a" * 900, "d" * 900, 1e12, HUGE, 1e12, 1e12, number=1)
    target = replace(target, bytes_in=HUGE, bytes_out=HUGE, report=report_, drafted=drafted, queue_ms_p99=1e12)
    facts = HubFacts(
        "\x1b]0;evil\x07", "v" * 900, 1e12, targets=[target], sessions=HUGE, bytes_up=HUGE, drafted=drafted
    )
    events = [Event(number, 1e12, "\x1b[31m" * 9, "名" * 900, "[red]" * 90) for number in range(1, 33)]
    board = board_of([Snapshot(1, HubFacts(targets=[TargetFacts("", number=1)])), Snapshot(1, facts, events)])
    for keys in ("", "jd", "j"):
        text = frame_text(board, pressed(keys, board), 80, 24)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert len(text.splitlines()) == 24
        assert max(map(cell_len, text.splitlines())) <= 80


def test_a_held_or_broken_picture_says_so() -> None:
    board = board_of(recorded())
    assert "paused" in frame_text(board, ViewState(paused=True), 80, 24).splitlines()[0]


def test_everything_at_once_is_as_long_as_it_has_to_be() -> None:
    text = text_of(report(crowd(60), Sight(80, 24, UNICODE, "hub", "", is_live=True)), 80, 24)
    assert all(f"orin-{number:03}" in text for number in range(1, 61))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (milliseconds(None), "-"),
        (milliseconds(0.123), "0.12"),
        (milliseconds(9.996), "10.0"),
        (milliseconds(99.96), "100"),
        (milliseconds(999.6), "1.0s"),
        (milliseconds(123_456.0), "123s"),
        (number(9.996), "10.0"),
        (number(12_345.0), "12k"),
        (number(1e12), "9999M"),
        (percent(0.987), "99%"),
        (percent(1e9), "999%"),
        (size(0.0), "0 B"),
        (size(1234.0), "1.2 kB"),
        (size(999_600.0), "1.0 MB"),
        (size(5e13), "50000 GB"),
        (clock(3_725.9), "1:02:05"),
        (bar(0.5, 4, UNICODE), "██░░"),
        (bar(7.0, 4, UNICODE), "████"),
        (sparkline([], 4, UNICODE), ""),
        (sparkline([9, 1, 2, 3], 3, UNICODE), "▁▅█"),
        (sparkline([50, 51], 2, UNICODE), "▁▁"),
    ],
)
def test_texts_of_numbers(text: str, wanted: str) -> None:
    assert text == wanted


def test_graphs_are_ascii_where_the_terminal_knows_nothing_else() -> None:
    assert marks_for("utf-8") is UNICODE
    for encoding in ("ascii", "latin-1", "no such encoding"):
        assert "".join(vars(marks_for(encoding)).values()).isascii()
