"""The target's side of a connection: being welcomed, refused, and living through what a hub must not send."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.codec import encode
from starsd_edge.protocol.messages import (
    MAX_TENSOR_BYTES,
    Closed,
    Draft,
    Error,
    Hello,
    HubMessage,
    Open,
    Opened,
    Ready,
    Resync,
)
from starsd_edge.protocol.target_side import HubReady, Refused, SentOn, SessionOpened, TargetProtocol, Welcomed
from tests.support.wire import Clock, TargetUnderTest, a_hello, a_welcome, only

TAG = b"t" * 16


def test_hello_goes_out_first_and_nothing_before_a_connection_stands() -> None:
    target = TargetUnderTest()
    target.protocol.open_session([7], "greedy")
    assert target.sent() == []
    target.protocol.connected()
    assert target.sent() == [a_hello()]


def test_welcome_and_ready_become_events() -> None:
    target = TargetUnderTest()
    target.protocol.connected()
    assert only(Welcomed, target.hear(a_welcome())) == Welcomed(a_welcome(), restarted=False)
    assert target.hear(Ready("another")) == []
    assert target.hear(Ready("ngram")) == [HubReady("ngram")]
    assert target.hear(Ready("ngram")) == []
    assert target.hear(Ready("another")) == []


def test_another_hub_instance_is_noticed_and_the_same_one_too() -> None:
    target = TargetUnderTest()
    for hub_id, restarted in [("a", False), ("a", False), ("b", True), ("b", False)]:
        events = target.connect(a_welcome(hub_id=hub_id))
        assert isinstance(events[0], Welcomed)
        assert events[0].restarted is restarted
        target.protocol.disconnected()


@pytest.mark.parametrize(
    ("code", "final"), [("version", True), ("fingerprint", True), ("codec", True), ("busy", False), ("new", False)]
)
def test_a_refused_connection_says_whether_trying_again_helps(code: str, final: bool) -> None:
    target = TargetUnderTest()
    target.protocol.connected()
    target.protocol.frames()
    event = only(Refused, target.hear(Error(code, "because", "connection", retry_after_ms=2500)))
    assert event == Refused(code, "because", final, 2.5)
    assert target.hear(a_welcome(), Error(code, "because", "connection")) == []
    assert target.sent() == []


@pytest.mark.parametrize("welcome", [{"version": 2}, {"feature_codec": "i1"}])
def test_a_welcome_that_wants_what_hello_did_not_offer_is_final(welcome: dict[str, object]) -> None:
    target = TargetUnderTest()
    target.protocol.connected()
    assert only(Refused, target.hear(a_welcome(**welcome))).final
    target.protocol.connected()
    assert only(Welcomed, target.hear(a_welcome()))


def test_a_target_goes_where_the_hub_sends_it_and_its_sessions_go_on_there() -> None:
    target = TargetUnderTest(dedicated=True)
    target.connect(a_welcome(hub_id="first"))
    session = target.open()
    target.protocol.connected()
    assert only(Hello, target.sent()).dedicated
    event = only(SentOn, target.hear(a_welcome(hub_id="second", port=9003, ticket="tick-et")))
    assert event == SentOn(9003, "tick-et")
    assert "tick-et" not in repr(event)
    assert target.hear(Ready("ngram"), a_welcome(), Error("x", "y", "connection")) == []
    assert target.sent() == []
    assert not session.is_open
    target.protocol.connected(at_own_port=True)
    assert only(Hello, target.sent()).dedicated
    assert only(Welcomed, target.hear(a_welcome(hub_id="first"))).restarted is False
    assert only(Open, target.sent()).resume == TAG


@pytest.mark.parametrize(
    ("hello", "welcome", "at_own_port"),
    [
        ({}, {"port": 9003, "ticket": "t"}, False),
        ({"dedicated": True}, {"port": 9003}, False),
        ({"dedicated": True}, {"ticket": "t"}, False),
        ({"dedicated": True}, {"port": 9003, "ticket": "t"}, True),
    ],
    ids=["not understood", "no ticket", "no port", "from port to port"],
)
def test_a_hub_that_sends_a_target_nowhere_is_left_for_a_while(
    hello: dict[str, object], welcome: dict[str, object], at_own_port: bool
) -> None:
    target = TargetUnderTest(**hello)
    target.protocol.connected(at_own_port)
    refused = only(Refused, target.hear(a_welcome(**welcome)))
    assert not refused.final
    assert refused.retry_after_s >= 10
    target.protocol.connected()
    assert only(Welcomed, target.hear(a_welcome()))


@pytest.mark.parametrize("welcome", [{"port": 1 << 16}, {"port": -1}, {"ticket": "a\r\nb"}, {"ticket": "x" * 129}])
def test_ports_that_are_none_and_tickets_that_would_forge_a_header_are_faults(welcome: dict[str, object]) -> None:
    target = TargetUnderTest(dedicated=True)
    target.protocol.connected()
    assert target.hear(a_welcome(**({"port": 9003, "ticket": "t"} | welcome))) == []
    assert target.protocol.counters.dropped["malformed"] == 1


@pytest.mark.parametrize(
    "message",
    [
        Ready("ngram"),
        Opened(1, TAG, 0),
        Draft(TAG, 1, 0, [], [], 0, 0, 0),
        Closed(TAG, 0),
        Resync(TAG, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_before_welcome_are_dropped_and_counted(message: HubMessage) -> None:
    target = TargetUnderTest()
    target.protocol.connected()
    session = target.protocol.open_session([7], "greedy")
    assert target.hear(message) == []
    assert target.protocol.counters.dropped["out_of_order"] == 1
    assert not session.is_open
    assert only(Welcomed, target.hear(a_welcome()))


def test_a_second_welcome_is_dropped() -> None:
    target = TargetUnderTest()
    target.connect()
    session = target.open()
    assert target.hear(a_welcome(hub_id="other")) == []
    assert session.is_open
    assert target.sent() == []


def test_frames_without_a_connection_are_dropped() -> None:
    target = TargetUnderTest()
    assert target.hear(a_welcome()) == []
    target.connect()
    target.protocol.disconnected()
    assert target.hear(Ready("ngram"), Error("x", "y", "connection")) == []
    assert target.protocol.counters.dropped["no_connection"] == 3


def test_a_few_faulty_frames_are_dropped_and_many_end_the_connection() -> None:
    target = TargetUnderTest()
    target.connect()
    session = target.open()
    for count in range(1, 8):
        assert target.protocol.receive(b"\xc1garbage") == []
        assert target.protocol.counters.dropped["malformed"] == count
    assert session.is_open
    event = only(Refused, list(target.protocol.receive(b"\xc1garbage")))
    assert not event.final
    assert event.retry_after_s > 0
    assert not session.is_open
    parting = target.sent()[-1]
    assert isinstance(parting, Error)
    assert parting.scope == "connection"
    target.connect()
    assert target.protocol.receive(b"\xc1garbage") == []


def test_an_oversized_frame_is_dropped() -> None:
    target = TargetUnderTest()
    target.connect()
    assert target.protocol.receive(bytes((1 << 20) + 1)) == []
    assert target.protocol.counters.dropped["malformed"] == 1


def test_text_from_the_hub_cannot_steer_the_terminal() -> None:
    target = TargetUnderTest()
    target.protocol.connected()
    event = only(Welcomed, target.hear(a_welcome(notice="\x1b[2Jhi\n", drafter_fp="a\rb")))
    assert event.welcome.notice.isprintable()
    assert event.welcome.drafter_fp.isprintable()
    refusal = only(Refused, target.hear(Error("c\x07", "\x1b]0;t\x07", "connection")))
    assert refusal.message.isprintable()
    assert refusal.code.isprintable()


def test_ready_opens_sessions_for_requests_in_either_order() -> None:
    target = TargetUnderTest()
    target.connect(ready=False)
    session = target.protocol.open_session([7], "greedy")
    opening = only(Open, target.sent())
    assert target.hear(Opened(opening.ref, TAG, 0)) == []
    assert not session.is_open
    assert target.hear(Ready("ngram")) == [HubReady("ngram"), SessionOpened(session)]
    assert session.is_open
    later = target.protocol.open_session([7], "sampled")
    assert only(SessionOpened, target.hear(Opened(only(Open, target.sent()).ref, b"u" * 16, 0))).session is later


def test_frames_that_were_not_drained_before_a_disconnect_are_never_sent() -> None:
    target = TargetUnderTest(codecs=[])
    target.connect()
    session = target.open()
    session.append([1, 2])
    session.extend()
    target.protocol.disconnected()
    assert target.sent() == []
    assert target.protocol.counters.frames_up["Extend"] == 0


def test_counters_hold_frames_and_bytes_per_kind_and_direction() -> None:
    target = TargetUnderTest()
    target.connect()
    counters = target.protocol.counters
    assert counters.frames_up == {"Hello": 1}
    assert counters.bytes_up == {"Hello": len(encode(a_hello()))}
    assert counters.frames_down == {"Welcome": 1, "Ready": 1}
    assert counters.bytes_down["Welcome"] == len(encode(a_welcome()))


@pytest.mark.parametrize(
    "hello",
    [
        {"codecs": ["f2", "f4"]},
        {"feature_width": 0},
        {"feature_width": MAX_TENSOR_BYTES // 2 + 1},
        {"feature_width": MAX_TENSOR_BYTES + 1, "codecs": ["i1"]},
    ],
)
def test_a_hello_that_promises_what_cannot_be_sent_is_a_mistake_of_the_caller(hello: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="features"):
        TargetProtocol(a_hello(**hello), Clock())


def test_a_reconnect_without_a_word_of_the_loss_begins_anew() -> None:
    target = TargetUnderTest()
    target.connect()
    target.open()
    target.protocol.connected()
    assert [type(message) for message in target.sent()] == [Hello]
    target.hear(a_welcome())
    assert only(Open, target.sent()).resume == TAG
