"""Probes of the link: who may send them, what comes back, and what neither side puts up with."""

from __future__ import annotations

import msgspec
import pytest

from starsd_edge.protocol.codec import PROBE_INTERVAL_S, encode, noise
from starsd_edge.protocol.codes import MALFORMED, MAX_OFFENCES, TOO_MANY_PROBES
from starsd_edge.protocol.hub_side import AnswerProbe
from starsd_edge.protocol.messages import MAX_PROBE_BYTES, Error, HubMessage, Probe, Probed, Welcome
from starsd_edge.protocol.target_side import ProbeAnswered, ProbeRefused, Refused
from tests.support.wire import HubUnderTest, Peer, TargetUnderTest, a_hello, a_welcome, only


def answer(hub: HubUnderTest, peer: Peer, after_s: float = 0.0, is_behind: bool = False) -> list[HubMessage]:
    """The front door hands the one probe back, this much later."""
    probe = hub.take_done(AnswerProbe)
    hub.now += after_s
    return hub.carry_out(hub.protocol.answer_probe(probe, hub.now, is_behind), peer.connection)


def test_a_hub_says_that_it_takes_probes() -> None:
    peer = HubUnderTest().connect_silently()
    assert only(Welcome, peer.say(a_hello())).probes


def test_a_probe_brings_back_what_was_wanted_and_the_hubs_own_time() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    assert peer.say(Probe(7, b"up", 1000)) == []
    probed = only(Probed, answer(hub, peer, after_s=0.002))
    assert (probed.number, len(probed.payload), probed.hub_us) == (7, 1000, 2000)


def test_the_bytes_of_a_probe_are_noise() -> None:
    import zlib

    assert len(zlib.compress(noise(1, 10_000))) >= 10_000
    assert noise(1, 100) != noise(2, 100)


def test_probes_that_come_too_fast_are_refused_and_no_offence() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    peer.say(Probe(1, b"", 0))
    answer(hub, peer)
    for number in range(2, 4 + MAX_OFFENCES):
        error = only(Error, peer.say(Probe(number, b"", 0)))
        assert (error.code, error.scope, error.retry_after_ms) == (TOO_MANY_PROBES, "frame", 50)
    hub.now += 1.01 * PROBE_INTERVAL_S
    peer.say(Probe(99, b"", 3))
    assert only(Probed, answer(hub, peer)).number == 99


def test_a_probe_of_a_target_that_has_not_taken_the_last_answer_is_refused() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    peer.say(Probe(1, b"", MAX_PROBE_BYTES))
    assert only(Error, answer(hub, peer, is_behind=True)).code == TOO_MANY_PROBES


@pytest.mark.parametrize(
    "probe",
    [Probe(1, bytes(MAX_PROBE_BYTES + 1), 0), Probe(1, b"", MAX_PROBE_BYTES + 1), Probe(1, b"", -1)],
)
def test_sizes_beyond_the_caps_are_no_messages(probe: Probe) -> None:
    hub = HubUnderTest()
    assert only(Error, hub.connect().say_frame(encode(probe))).code == MALFORMED
    assert hub.done == []


def test_a_target_probes_only_a_hub_that_answers() -> None:
    target = TargetUnderTest()
    assert target.protocol.probe(1, 1) is None
    target.connect(a_welcome())
    assert target.protocol.probe(1, 1) is None
    target.connect(a_welcome(probes=True))
    number = target.protocol.probe(5, 9)
    probe = only(Probe, target.sent())  # type: ignore[arg-type]
    assert (probe.number, len(probe.payload), probe.want_bytes) == (number, 5, 9)


def test_a_target_times_its_probe() -> None:
    target = TargetUnderTest()
    target.connect(a_welcome(probes=True))
    number = target.protocol.probe(5, 2) or 0
    target.clock.now += 0.25
    assert target.hear(Probed(number, b"ab", 40)) == [ProbeAnswered(number, 250_000, 40)]
    assert target.hear(Probed(number, b"ab", 40)) == [], "the same again is late"


def test_a_later_probe_gives_up_the_one_before() -> None:
    target = TargetUnderTest()
    target.connect(a_welcome(probes=True))
    first, second = target.protocol.probe(0, 0) or 0, target.protocol.probe(0, 0) or 0
    assert target.hear(Probed(first, b"", 0)) == []
    assert only(ProbeAnswered, target.hear(Probed(second, b"", 0))).number == second


def test_a_refused_probe_is_told_and_costs_nothing_else() -> None:
    target = TargetUnderTest()
    target.connect(a_welcome(probes=True))
    session = target.open()
    number = target.protocol.probe(0, 0) or 0
    refusal = Error(TOO_MANY_PROBES, "too many probes", "frame", retry_after_ms=50)
    assert target.hear(refusal) == [ProbeRefused(number, 0.05)]
    assert target.hear(refusal) == []
    assert session.is_open


def test_an_answer_of_another_size_is_a_fault_of_the_hub() -> None:
    target = TargetUnderTest()
    target.connect(a_welcome(probes=True))
    for _ in range(MAX_OFFENCES - 1):
        number = target.protocol.probe(0, 3) or 0
        assert target.hear(Probed(number, b"four", 0)) == [ProbeRefused(number, 0.0)]
    number = target.protocol.probe(0, 3) or 0
    assert any(isinstance(event, Refused) for event in target.hear(Probed(number, b"four", 0)))


def test_a_lost_connection_takes_its_probe_with_it() -> None:
    target = TargetUnderTest()
    target.connect(a_welcome(probes=True))
    number = target.protocol.probe(0, 0) or 0
    target.connect(a_welcome(probes=True))
    assert target.hear(Probed(number, b"", 0)) == []


def test_a_hub_of_before_probes_says_that_it_takes_none() -> None:
    fields = msgspec.msgpack.decode(encode(a_welcome()))
    target = TargetUnderTest()
    target.protocol.connected()
    target.protocol.receive(msgspec.msgpack.encode(fields[:12]))  # it ends with `reports`
    assert target.protocol.probe(1, 1) is None
