"""Figures of rounds, round-trip times and answers."""

from __future__ import annotations

import json
import socket

import pytest

from starsd_edge.telemetry.rounds import HUB, NGRAM, Round, RoundStats
from starsd_edge.telemetry.rtt import RttEstimator, TcpRtt, read_tcp_rtt
from starsd_edge.telemetry.summary import Figures, LinkFigures

ROUNDS = [
    Round(HUB, drafted=4, accepted=2, levels_offered=3, emitted=3, bytes_up=60, bytes_down=40, round_s=0.5),
    Round(HUB, drafted=4, accepted=4, levels_offered=4, emitted=5, bytes_up=80, bytes_down=40, round_s=0.5, late=True),
    Round(NGRAM, drafted=2, accepted=0, levels_offered=1, emitted=1, bytes_up=60, round_s=0.5),
    Round(emitted=1, round_s=0.5, why_off="late"),
]


def summed(rounds: list[Round]) -> RoundStats:
    stats = RoundStats()
    for done in rounds:
        stats.add(done)
    return stats


def test_both_averages() -> None:
    stats = summed(ROUNDS)
    assert (stats.accepted_per_round, stats.tokens_per_round) == (1.5, 2.5)
    assert (stats.draft_share, stats.by_origin) == (0.75, {"hub": 2, "ngram": 1, "none": 1})
    assert (stats.bytes_up_per_round, stats.bytes_down_per_round) == (50, 20)
    assert stats.late == 1
    assert stats.why_off == {"late": 1}


def test_survival_counts_only_levels_that_were_offered() -> None:
    # Level 1 was offered in three rounds and accepted in two; level 4 was offered in one and accepted.
    assert summed(ROUNDS).survival == [pytest.approx(2 / 3), 1, 0.5, 1]


def test_sums_of_answers_are_sums_of_rounds() -> None:
    merged = summed(ROUNDS[:2])
    merged.merge(summed(ROUNDS[2:]))
    assert merged == summed(ROUNDS)
    merged = summed(ROUNDS[2:])
    merged.merge(summed(ROUNDS[:2]))
    assert merged.survival == summed(ROUNDS).survival


def test_no_rounds_divide_nothing() -> None:
    stats = RoundStats()
    assert (stats.accepted_per_round, stats.tokens_per_round, stats.draft_share, stats.survival) == (0, 0, 0, [])


def test_smoothed_round_trip_follows_rfc_6298() -> None:
    estimator = RttEstimator()
    estimator.add(0.100)
    assert (estimator.smoothed_s, estimator.deviation_s) == (0.1, 0.05)
    estimator.add(0.180)
    assert estimator.deviation_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.08)
    assert estimator.smoothed_s == pytest.approx(0.875 * 0.1 + 0.125 * 0.18)
    assert estimator.upper_s == pytest.approx(estimator.smoothed_s + 4 * estimator.deviation_s)
    assert (estimator.minimum_s, estimator.samples) == (0.1, 2)


class FakeSocket:
    def __init__(self, info: bytes) -> None:
        self.info = info

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        assert (level, optname) == (socket.IPPROTO_TCP, 11)
        return self.info


def test_tcp_info_is_read_at_its_offsets() -> None:
    info = bytearray(256)
    info[68:72] = (12_345).to_bytes(4, "little")
    info[148:152] = (9_000).to_bytes(4, "little")
    info[136:140] = (250).to_bytes(4, "little")
    info[100:104] = (3).to_bytes(4, "little")
    assert read_tcp_rtt(FakeSocket(bytes(info))) == TcpRtt(0.012345, 0.009, segments_out=250, retransmits=3)
    info[148:152] = b"\xff" * 4
    assert read_tcp_rtt(FakeSocket(bytes(info))) == TcpRtt(0.012345, 0.012345, 250, 3)
    assert read_tcp_rtt(FakeSocket(bytes(104))) is None


def test_tcp_info_of_other_sockets_is_none() -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        assert read_tcp_rtt(unix) is None
    with socket.socket() as closed:
        pass
    assert read_tcp_rtt(closed) is None


def test_figures_for_machines_and_people_agree() -> None:
    figures = Figures()
    figures.add(11, prefill_s=0.2, decode_s=2.0, stats=summed(ROUNDS))
    link = LinkFigures("ngram", TcpRtt(0.0015, 0.001), 0.002, 1)
    named = json.loads(json.dumps(figures.named(link)))
    assert named["tokens_per_s"] == 5
    assert (named["accepted_per_round"], named["tokens_per_round"]) == (1.5, 2.5)
    assert (named["rtt_ms"], named["min_rtt_ms"], named["draft_link_ms"]) == (1.5, 1.0, 2.0)
    assert (named["bytes_up_per_round"], named["round_ms"]) == (50, 500)
    assert named["rounds_off"] == {"late": 1}
    lines = dict(figures.lines(link))
    assert lines["tokens"] == "11, the first after 200 ms, then 5.0 tokens/s"
    assert lines["rounds"] == "4, 75% with a draft: hub (ngram) 2, local ngram 1, none 1"
    assert lines["off"] == "late in 1 round: the hub's drafts come too late to be waited for"
    assert "off" not in dict(Figures().lines(link))
    assert lines["RTT"] == "1.50 ms (least 1.00 ms), drafts 2.00 ms on the link"
    assert lines["bytes per round"] == "50 up, 20 down"
    assert "RTT" not in dict(figures.lines(LinkFigures()))
    assert (named["clamped_rows"], "features" in lines) == (0, False)
    clamped = LinkFigures("eagle", clamped_rows=3)
    assert figures.named(clamped)["clamped_rows"] == 3
    assert dict(figures.lines(clamped))["features"] == (
        "not finite in 3 rows, clamped for the hub: its drafts are weak"
    )
