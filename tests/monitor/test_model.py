"""Snapshots fold into what is shown: rates, restarts, what only targets know, and many that come and go."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from starsd_edge.telemetry.feed import Event, FeedError, Snapshot, decode_snapshot, encode_snapshot
from starsd_edge.telemetry.hub_facts import DrafterFacts, HubFacts, Judgement, TargetFacts, TargetReport, TimeUse
from starsd_edge.telemetry.monitor.board import StarBoard
from starsd_edge.telemetry.monitor.formats import UNICODE
from starsd_edge.telemetry.monitor.model import WINDOW_S, MonitorModel
from starsd_edge.telemetry.monitor.target_table import detail_lines
from tests.support.monitor_frames import board_of, frame_text, pressed, recorded


def at(seconds: float, *targets: TargetFacts, **facts: object) -> Snapshot:
    return Snapshot(1, HubFacts(hub_id="hub", uptime_s=seconds, targets=list(targets), **facts))  # type: ignore[arg-type]


def target(connected_s: float = 1.0, **facts: object) -> TargetFacts:
    return TargetFacts("orin", number=7, connected_s=connected_s, **facts)  # type: ignore[arg-type]


def test_rates_are_those_of_the_last_seconds() -> None:
    model = MonitorModel()
    for second in range(30):
        drafts = 10 * second if second < 10 else 100 + 20 * (second - 10)
        drafter = DrafterFacts("eagle", drafts=drafts, passes=drafts // 2)
        use = TimeUse(busy_s=0.25 * second, idle_s=0.7 * second, lag_s=0.05 * second)
        board = model.take(
            at(
                float(second),
                target(float(second), bytes_in=1000 * second, drafted=Judgement(drafts)),
                drafters=[drafter],
                time=use,
                bytes_up=5000 * second,
            )
        )
    assert board.hub.drafts_per_s == pytest.approx(20)
    assert board.hub.batch == pytest.approx(2)
    assert board.hub.busy == pytest.approx(0.25)
    assert board.hub.idle == pytest.approx(0.7)
    assert board.hub.bytes_up_per_s == pytest.approx(5000)
    assert board.targets[0].drafts_per_s == pytest.approx(20)
    assert board.targets[0].bytes_up_per_s == pytest.approx(1000)


def test_a_first_snapshot_has_no_rates_and_a_lost_one_costs_nothing() -> None:
    every = [at(0.5 * step, target(0.5 * step, bytes_in=50 * step)) for step in range(8)]
    assert board_of(every[:1]).targets[0].bytes_up_per_s == 0
    assert board_of(every).targets == board_of([every[0], every[3], every[7]]).targets


def test_acceptance_is_of_late_and_kept_while_nothing_new_is_known() -> None:
    early = Judgement(10, 40, 10, 40, [10, 10], [10, 10])
    late = Judgement(20, 60, 20, 45, [20, 15, 4], [15, 12, 1])
    boards = [
        board_of([at(0, target(0, drafted=early)), at(1, target(1, drafted=late))]),
        board_of([at(0, target(0, drafted=early)), at(1, target(1, drafted=late)), at(30, target(30, drafted=late))]),
    ]
    for board in boards:
        seen = board.targets[0].acceptance
        assert seen.accepted_per_draft == pytest.approx(0.5)
        assert seen.nodes_per_draft == pytest.approx(2.0)
        assert seen.survival == pytest.approx((0.5, 2 / 5, 1 / 4))


def test_what_a_target_says_of_itself() -> None:
    before = TargetReport(rounds=10, hub_rounds=10, tokens=30, draft_us=1_000_000, verify_us=400_000)
    after = TargetReport(20, 14, 2, 60, 2_000_000, 500_000, 900_000, 100_000, "late")
    spoken = board_of([at(0, target(0, report=before)), at(2, target(2, report=after))]).targets[0].spoken
    assert spoken.tokens_per_s == pytest.approx(30)
    assert spoken.plain_tokens_per_s == pytest.approx(4 / 0.5)
    assert spoken.verify_ms == pytest.approx(50)
    assert spoken.wait_ms == pytest.approx(10)
    assert (spoken.hub_share, spoken.local_share) == pytest.approx((0.4, 0.2))


@pytest.mark.parametrize(
    ("facts", "drafter", "state"),
    [
        (target(report=TargetReport(why_off="")), DrafterFacts("eagle", warm=True), "on"),
        (target(report=TargetReport(why_off="late")), DrafterFacts("eagle", warm=True), "late"),
        (target(report=TargetReport(why_off="", clamped_rows=3)), DrafterFacts("eagle", warm=True), "on"),
        (target(report=TargetReport(why_off="clamped")), DrafterFacts("eagle", warm=True), "clamped"),
        (target(report=TargetReport(why_off="a_new_reason")), DrafterFacts("eagle", warm=True), "a_new_reason"),
        (target(report=TargetReport(why_off="")), DrafterFacts("eagle", warm=False), "warming"),
        (target(report=TargetReport(why_off="")), DrafterFacts("eagle", warm=True, failing=True), "failing"),
        (target(), DrafterFacts("eagle", warm=True), "idle"),
    ],
)
def test_why_a_target_goes_without_the_hub(facts: TargetFacts, drafter: DrafterFacts, state: str) -> None:
    board = board_of([at(1, replace(facts, drafter="eagle"), drafters=[drafter])])
    assert board.targets[0].state == state


@pytest.mark.parametrize(("clamped", "state"), [(0, "on"), (4, "clamped")])
def test_drafts_that_are_used_though_features_were_clamped_of_late_are_shown_so(clamped: int, state: str) -> None:
    before, after = TargetReport(rounds=1, clamped_rows=9), TargetReport(rounds=2, clamped_rows=9 + clamped)
    board = board_of([at(0, target(0, report=before)), at(1, target(1, report=after))])
    assert board.targets[0].state == state


def test_a_target_that_reports_nothing_is_judged_by_its_drafts() -> None:
    board = board_of([at(0, target(0)), at(1, target(1, drafted=Judgement(drafts=3)))])
    assert board.targets[0].state == "on"


def test_events_are_shown_once_and_in_order() -> None:
    model = MonitorModel()
    first = [Event(1, 0.1, "joined", "a"), Event(2, 0.2, "left", "a\x1b[2J")]
    model.take(Snapshot(1, HubFacts(hub_id="h", uptime_s=1), first))
    board = model.take(Snapshot(1, HubFacts(hub_id="h", uptime_s=2), [*first, Event(5, 1.5, "joined", "b")]))
    assert [(event.number, event.target) for event in board.events] == [(1, "a"), (2, "a\ufffd[2J"), (5, "b")]


@pytest.mark.parametrize("again", [HubFacts(hub_id="other", uptime_s=50), HubFacts(hub_id="hub", uptime_s=0.5)])
def test_a_restarted_hub_begins_anew(again: HubFacts) -> None:
    model = MonitorModel()
    model.take(Snapshot(1, HubFacts(hub_id="hub", uptime_s=10, bytes_up=10**6), [Event(9, 9.0, "left", "a")]))
    board = model.take(Snapshot(1, again, [Event(1, 0.1, "joined", "a")]))
    assert [event.kind for event in board.events] == ["left", "restarted", "joined"]
    assert board.hub.bytes_up_per_s == 0


def test_connections_of_one_name_are_kept_apart() -> None:
    twins = [TargetFacts("orin", number=number, rtt_ms=float(number)) for number in (1, 2)]
    rows = board_of([at(0, *twins), at(1, *twins)]).targets
    assert [row.rtt_history for row in rows] == [(1.0, 1.0), (2.0, 2.0)]


def test_the_hubs_port_of_a_target_is_told_where_it_is_known() -> None:
    facts = HubFacts(targets=[TargetFacts("orin", "10.0.0.5:50000", number=1, port=9003)])
    (row,) = board_of([Snapshot(1, facts)]).targets
    assert "10.0.0.5:50000 at port 9003, connected" in detail_lines(row, [], 0.0, 80, UNICODE)[1].plain
    assert "at port" not in detail_lines(replace(row, port=0), [], 0.0, 80, UNICODE)[1].plain


def test_fifty_replayed_targets_that_come_and_go() -> None:
    chance = random.Random(5)
    model = MonitorModel()
    present: dict[int, float] = {}
    number = 0
    board = StarBoard()
    keys = ["j", "d", "s", "p", "k", "?", "esc"]
    chosen = pressed("", board)
    for step in range(400):
        now = step / 2
        while len(present) < 50 and chance.random() < 0.9:
            number += 1
            present[number] = now
        for gone in [one for one in present if chance.random() < 0.05]:
            del present[gone]
        targets = [
            TargetFacts(
                f"orin-{one % 50:02}",
                number=one,
                connected_s=now - since,
                rtt_ms=chance.uniform(1, 9),
                drafted=Judgement(int(20 * (now - since)), int(80 * (now - since))),
            )
            for one, since in present.items()
        ]
        board = model.take(decode_snapshot(encode_snapshot(at(now, *targets))))
        assert {row.key for row in board.targets} == {f"#{one}" for one in present}
        chosen = pressed(chance.choice(keys), board) if step % 9 == 0 else chosen
        assert len(frame_text(board, chosen, 80, 24).splitlines()) == 24
        for row, one in zip(board.targets, present, strict=True):
            assert len(row.rtt_history) == round(2 * (now - present[one])) + 1 or len(row.rtt_history) == 240
    assert number > 500
    steady = [row for row in board.targets if row.connected_s > WINDOW_S]
    assert all(row.drafts_per_s == pytest.approx(20, rel=0.1) for row in steady)


def test_the_recorded_feed_survives_a_round_trip() -> None:
    for snapshot in recorded():
        assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not a snapshot"),
        (b"\xff\xfe", "not a snapshot"),
        (b"[]", "not a snapshot"),
        (b'{"version":2,"facts":{}}', "version 2"),
        (b'{"version":1,"facts":{"sessions":-1}}', "not a snapshot"),
        (b'{"version":1,"facts":{"uptime_s":1e300}}', "not a snapshot"),
        (b'{"version":1,"facts":{"bytes_up":' + b"9" * 400 + b"}}", "not a snapshot"),
        (b'{"version":1,"facts":{"hub_id":"' + b"x" * 2000 + b'"}}', "not a snapshot"),
        (b'{"new":' + b"[" * 100_000, "not a snapshot"),
        (b" " * (5 << 20), "over the limit"),
    ],
)
def test_lines_that_are_no_snapshots_are_refused_in_one_line(line: bytes, words: str) -> None:
    with pytest.raises(FeedError, match=words) as refused:
        decode_snapshot(line)
    assert "\n" not in str(refused.value)


def test_fields_of_a_newer_hub_are_ignored_and_those_of_an_older_one_have_defaults() -> None:
    snapshot = decode_snapshot(
        b'{"version":1,"facts":{"hub_id":"h","new":1,"targets":[{"target":"t","new":2}]},"new":3}'
    )
    assert snapshot == Snapshot(1, HubFacts(hub_id="h", targets=[TargetFacts("t")]))
