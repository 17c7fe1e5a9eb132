"""What a target tells the hub's monitor of its rounds."""

from __future__ import annotations

from starsd_edge.protocol.messages import MAX_WIDTHS, Report
from starsd_edge.telemetry.rounds import HUB, NGRAM, NONE, Round
from starsd_jetson.reporting import Reporter


class Scene:
    def __init__(self) -> None:
        self.now = 10.0
        self.why = ""
        self.sent: list[Report] = []
        self.reporter = Reporter(self.sent.append, lambda: self.now)

    def rounds(self, *origins: str) -> None:
        for origin in origins:
            emitted = 1 if origin == NONE else 3
            self.reporter.round(
                Round(origin, 4, 2, 3, emitted, round_s=0.25, verify_s=0.125, wait_s=0.0625, why_off=self.why)
            )


def test_rounds_are_summed_by_what_drafted_for_them() -> None:
    scene = Scene()
    scene.rounds(HUB, HUB, NGRAM, NONE)
    scene.reporter.idle()
    assert scene.sent[-1] == Report(
        rounds=4,
        hub_rounds=2,
        local_rounds=1,
        tokens=9,
        draft_us=750_000,
        plain_us=250_000,
        verify_us=500_000,
        wait_us=250_000,
        why_off="idle",
        pass_rows=[5],
        pass_us=[187_500],
    )


def test_a_report_goes_out_at_most_once_a_second_and_at_the_end() -> None:
    scene = Scene()
    for tenth in range(21):
        scene.now = 10.0 + tenth / 10
        scene.rounds(HUB)
    assert [report.rounds for report in scene.sent] == [1, 11, 21]
    scene.reporter.idle()
    assert scene.sent[-1].rounds == 21


def test_a_report_says_why_the_hub_did_not_draft() -> None:
    scene = Scene()
    scene.why = "late"
    scene.rounds(NGRAM)
    assert scene.sent[0].why_off == "late"


def test_a_report_tells_what_rounds_of_each_width_usually_take() -> None:
    scene = Scene()
    for round_s in (0.30, 0.32, 9.0):  # one was held up
        scene.reporter.round(Round(HUB, 4, 2, 3, 3, round_s=round_s, wait_s=0.02))
    scene.reporter.round(Round(NONE, emitted=1, round_s=0.25))
    scene.reporter.idle()
    last = scene.sent[-1]
    assert dict(zip(last.pass_rows or [], last.pass_us or [], strict=True)) == {5: 300_000, 1: 250_000}


def test_the_widths_that_are_told_are_the_last_ones() -> None:
    scene = Scene()
    for nodes in [*range(MAX_WIDTHS), 0, MAX_WIDTHS]:
        scene.reporter.round(Round(HUB, nodes, 0, 1, 1, round_s=0.1))
    scene.reporter.idle()
    assert scene.sent[-1].pass_rows == [*range(3, MAX_WIDTHS + 1), 1, MAX_WIDTHS + 1]


def test_a_width_that_is_not_seen_any_more_is_forgotten() -> None:
    scene = Scene()
    for nodes in (7, *[3] * 200):
        scene.reporter.round(Round(HUB, nodes, 0, 1, 1, round_s=0.1))
    scene.reporter.idle()
    assert scene.sent[-1].pass_rows == [4]
