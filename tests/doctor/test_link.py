"""Probing a link and what the times say."""

from __future__ import annotations

import pytest

from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.link import (
    FIRST_LARGE_BYTES,
    LARGE_PROBES,
    SMALL_BYTES,
    SMALL_PROBES,
    LinkFacts,
    Probes,
    check_link,
    goodput,
    link_figures,
    milliseconds,
    probe_link,
    rate,
)
from starsd_edge.protocol.codec import PROBE_INTERVAL_S
from starsd_edge.protocol.messages import MAX_PROBE_BYTES
from starsd_edge.protocol.target_side import ProbeAnswered
from starsd_edge.telemetry.rtt import TcpRtt

TCP = TcpRtt(0.002, 0.0015, segments_out=1000, retransmits=2)


class Line:
    """A link by formula: so long for every message, and so many bytes per second.

    Args:
        answers: probes after which the hub says nothing more.
    """

    def __init__(self, rtt_s: float, bytes_per_s: float, answers: int = 10_000) -> None:
        self.rtt_s = rtt_s
        self.bytes_per_s = bytes_per_s
        self.answers = answers
        self.sizes: list[tuple[int, int]] = []
        self.slept_s = 0.0

    def probe(self, up: int, down: int, timeout_s: float) -> ProbeAnswered | None:
        self.sizes.append((up, down))
        if len(self.sizes) > self.answers:
            return None
        hub_us = 250
        link_us = 1e6 * (self.rtt_s + (up + down - 2 * SMALL_BYTES) / self.bytes_per_s)
        return ProbeAnswered(len(self.sizes), round(link_us) + hub_us, hub_us)

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def probed(line: Line) -> Probes:
    probes = probe_link(line.probe, line.sleep)
    assert probes is not None
    return probes


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 1e8])
def test_the_goodput_of_a_line_is_found_both_ways(bytes_per_s: float) -> None:
    line = Line(0.02, bytes_per_s)
    facts = LinkFacts.of(TCP, probed(line), ())
    assert facts.median_s == pytest.approx(0.02)
    assert facts.up_bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    assert facts.down_bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    assert line.slept_s == pytest.approx(PROBE_INTERVAL_S * len(line.sizes)), "a pause after each"


def test_a_thin_line_is_not_filled_with_the_largest_messages() -> None:
    line = Line(0.02, 1e4)
    assert probed(line).up_bytes == FIRST_LARGE_BYTES
    assert max(map(max, line.sizes)) == FIRST_LARGE_BYTES
    assert probed(Line(0.02, 1e8)).up_bytes == MAX_PROBE_BYTES


def test_a_hub_that_answers_nothing() -> None:
    assert probe_link(Line(0.02, 1e8, answers=0).probe, lambda seconds: None) is None


def test_a_hub_that_falls_silent_leaves_what_was_measured() -> None:
    some = probed(Line(0.02, 1e8, answers=11))
    assert (len(some.small_s), some.up_s, some.down_s) == (10, [], [])
    facts = LinkFacts.of(TCP, some, ())
    assert facts.up_bytes_per_s is None
    more = probed(Line(0.02, 1e8, answers=1 + SMALL_PROBES + 2 + LARGE_PROBES))
    assert (len(more.up_s), more.down_s) == (LARGE_PROBES, [])


def test_no_goodput_where_large_messages_take_no_longer() -> None:
    assert goodput([0.002], [0.001], 1000) is None
    assert goodput([], [0.001], 1000) is None


def by_name(facts: LinkFacts) -> dict[str, Finding]:
    return {each.name: each for each in check_link(facts)}


def test_a_good_link() -> None:
    facts = LinkFacts(TCP, [0.003] * 20, of_drafts=False, up_bytes_per_s=2e5, down_bytes_per_s=5e7)
    found = by_name(facts)
    assert {each.level for each in found.values()} == {Level.OK}
    assert found["RTT"].finding.startswith("2.00 ms, least 1.50 ms")
    assert found["goodput"].finding == "200 kB/s up, 50 MB/s down"
    assert found["loss"].finding.startswith("2 of 1000 segments")
    assert facts.transfer_s(100, 1000) == pytest.approx(100 / 2e5 + 1000 / 5e7)


def test_an_unsteady_link() -> None:
    jitter = by_name(LinkFacts(TCP, [0.003] * 90 + [0.2] * 10, of_drafts=False))["jitter"]
    assert jitter.level is Level.WARNING
    assert "3.00 ms on the link (p50), 200 ms (p95), 3.00 ms at least" in jitter.finding
    little = by_name(LinkFacts(TCP, [0.0002] * 90 + [0.002] * 10, of_drafts=False))["jitter"]
    assert little.level is Level.OK, "a few milliseconds disturb nobody"


def test_a_tunnel_hides_the_hub_from_the_kernel() -> None:
    facts = LinkFacts(TCP, [0.050, 0.041], of_drafts=False)
    rtt = by_name(facts)["RTT"]
    assert (rtt.level, facts.rtt_s) == (Level.NOTE, 0.041)
    assert "messages take 41 ms, so a tunnel or a proxy lies between" in rtt.finding
    assert not LinkFacts(TCP, [0.0089, 0.041], of_drafts=False).is_relayed


def test_a_lossy_link() -> None:
    assert by_name(LinkFacts(TcpRtt(0.002, 0.001, 1000, 30), [0.1], False))["loss"].level is Level.WARNING
    assert by_name(LinkFacts(TcpRtt(0.002, 0.001, 20, 1), [0.1], False))["loss"].level is Level.OK


def test_an_old_hub_leaves_the_drafts_link_times() -> None:
    facts = LinkFacts.of(TCP, None, [0.004, 0.005])
    found = by_name(facts)
    assert found["goodput"].finding == "not measured (hub too old)"
    assert found["goodput"].level is Level.NOT_RUN
    assert found["jitter"].finding.startswith("2 drafts took")
    assert facts.transfer_s(1e6, 1e6) == 0.0


def test_a_system_that_tells_nothing() -> None:
    found = by_name(LinkFacts(None, [0.004], of_drafts=False))
    assert (found["RTT"].level, found["loss"].level) == (Level.NOT_RUN, Level.NOT_RUN)
    assert by_name(LinkFacts(None, [], of_drafts=True))["jitter"].level is Level.NOT_RUN
    assert LinkFacts(None, [0.004, 0.006], of_drafts=False).rtt_s == 0.004


def test_figures_are_what_the_lines_say() -> None:
    facts = LinkFacts(TCP, [0.003, 0.004], of_drafts=False, up_bytes_per_s=2e6, down_bytes_per_s=None)
    figures = {each.name: each.value for each in link_figures(facts, "CPU")}
    assert figures["rtt_ms"] == 2
    assert figures["link_ms_min"] == 3
    assert figures["goodput_up_mb_per_s"] == 2
    assert "goodput_down_mb_per_s" not in figures


def test_units() -> None:
    assert [milliseconds(s) for s in (0.000004, 0.00123, 0.0123)] == ["0.004 ms", "1.23 ms", "12 ms"]
    assert [rate(r) for r in (12_000, 9_000_000, 120e6)] == ["12 kB/s", "9000 kB/s", "120 MB/s"]
