"""The first messages of a connection at the hub, in order and out of it."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.codec import Scope, encode
from starsd_edge.protocol.hub_side import HangUp, HubLimits, Offer, OwnPort, Refusal, SendOn
from starsd_edge.protocol.messages import (
    Close,
    DraftRequest,
    Error,
    Extend,
    Hello,
    Open,
    Opened,
    Ready,
    TargetMessage,
    Welcome,
)
from tests.support.wire import HUB_ID, HubUnderTest, a_hello, only

TAG = b"t" * 16


def test_hello_is_answered_with_the_smaller_limits_of_both_sides() -> None:
    hub = HubUnderTest(limits=HubLimits(max_nodes=20, max_depth=6, max_sessions_per_connection=3, heartbeat_s=5.0))
    welcome = only(Welcome, hub.connect_silently().say(a_hello(max_tree=16, max_depth=9)))
    assert welcome == Welcome(1, HUB_ID, "ngram", "fp", "none", 5.0, 3, 15, 6, reports=True, probes=True)
    assert only(Welcome, hub.connect_silently().say(a_hello(max_tree=64, max_depth=2))).max_nodes == 20


def test_ready_follows_when_the_drafter_gets_warm_and_at_once_afterwards() -> None:
    hub = HubUnderTest()
    early, silent = hub.connect(), hub.connect_silently()
    sent = hub.protocol.ready("ngram")
    assert hub.carry_out(sent, early.connection) == [Ready("ngram")]
    assert hub.carry_out(sent, silent.connection) == []
    assert hub.protocol.ready("ngram") == []
    assert [type(message) for message in silent.say(a_hello())] == [Welcome, Ready]


def test_ready_of_another_drafter_is_not_told() -> None:
    hub = HubUnderTest()
    hub.connect()
    assert hub.protocol.ready("eagle") == []


def test_highest_common_version_wins_and_none_ends_the_connection_with_4001() -> None:
    hub = HubUnderTest()
    assert only(Welcome, hub.connect_silently().say(a_hello(versions=[3, 1, 2]))).version == 1
    peer = hub.connect_silently()
    error = only(Error, peer.say(a_hello(versions=[2, 3])))
    assert (error.code, error.scope) == ("version", "connection")
    assert "2, 3" in error.message
    hang_up = hub.take_done(HangUp)
    assert (hang_up.connection, hang_up.code) == (peer.connection.number, 4001)
    assert peer.say(a_hello()) == []


def test_a_foreign_model_is_refused_with_both_fingerprints_named() -> None:
    def choose(hello: Hello) -> Offer | Refusal:
        return Refusal("fingerprint", f"the hub drafts for tokenizer abc, the target has {hello.tokenizer_fp}")

    hub = HubUnderTest(choose=choose)
    error = only(Error, hub.connect_silently().say(a_hello(tokenizer_fp="xyz")))
    assert (error.code, error.scope) == ("fingerprint", "connection")
    assert "abc" in error.message
    assert "xyz" in error.message
    assert hub.take_done(HangUp).code == 4002


def test_other_refusals_carry_their_close_code_and_when_to_come_back() -> None:
    for code, close_code in [("quota", 4003), ("busy", 1013), ("something new", 1008)]:
        hub = HubUnderTest(choose=lambda _, code=code: Refusal(code, "x" * 5000, 1500))  # type: ignore[misc]
        error = only(Error, hub.connect_silently().say(a_hello()))
        assert (error.code, error.retry_after_ms, len(error.message)) == (code, 1500, 1024)
        hang_up = hub.take_done(HangUp)
        assert hang_up.code == close_code
        assert len(hang_up.reason.encode()) <= 123


def test_a_drafter_whose_features_the_target_cannot_send_is_refused() -> None:
    hub = HubUnderTest(codec="f2")
    error = only(Error, hub.connect_silently().say(a_hello(codecs=[])))
    assert (error.code, error.scope) == ("codec", "connection")
    assert hub.take_done(HangUp).code == 4002


@pytest.mark.parametrize(
    "message",
    [
        Open(1, 0, 7),
        Open(1, 0, 7, resume=TAG),
        Extend(TAG, 0, [1]),
        DraftRequest(TAG, 1, 1, 0, [1], 8, 4, 1),
        Close(TAG),
    ],
    ids=lambda message: type(message).__name__,
)
def test_any_message_before_hello_ends_the_connection(message: TargetMessage) -> None:
    hub = HubUnderTest()
    peer = hub.connect_silently()
    error = only(Error, peer.say(message))
    assert (error.code, error.scope) == ("out_of_order", "connection")
    assert hub.take_done(HangUp).code == 1008
    assert peer.say(a_hello()) == []


@pytest.mark.parametrize("scope", ["frame", "session", "connection"])
def test_an_error_before_hello_ends_the_connection_and_is_not_answered_with_one(scope: Scope) -> None:
    hub = HubUnderTest()
    peer = hub.connect_silently()
    assert peer.say(Error("x", "y", scope)) == []
    assert hub.take_done(HangUp).code == 1008
    assert peer.say(a_hello()) == []


def test_garbage_before_hello_ends_the_connection() -> None:
    hub = HubUnderTest()
    error = only(Error, hub.connect_silently().say_frame(b"GET / HTTP/1.1\r\n"))
    assert (error.code, error.scope) == ("malformed", "connection")
    hub.take_done(HangUp)


def test_a_second_hello_ends_the_connection_and_its_sessions_can_be_resumed() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = peer.open()
    hub.done.clear()
    error = only(Error, peer.say(a_hello()))
    assert (error.code, error.scope) == ("out_of_order", "connection")
    hub.take_done(HangUp)
    peer.lose()
    assert hub.connect().say(Open(2, 0, 7, resume=tag))[0].tag == tag  # type: ignore[union-attr]


def test_a_few_malformed_frames_cost_themselves_and_many_the_connection() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    for _ in range(7):
        error = only(Error, peer.say_frame(b"\xc1"))
        assert (error.code, error.scope) == ("malformed", "frame")
    assert peer.open()
    hub.done.clear()
    frame_error, end = peer.say_frame(b"\xc1")
    assert isinstance(end, Error)
    assert isinstance(frame_error, Error)
    assert (frame_error.scope, end.scope) == ("frame", "connection")
    assert hub.take_done(HangUp).code == 1008
    assert peer.say_frame(encode(a_hello())) == []
    assert hub.protocol.counters.dropped["malformed"] >= 8


def test_an_oversized_frame_costs_itself() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    error = only(Error, peer.say_frame(bytes((1 << 20) + 1)))
    assert (error.code, error.scope) == ("malformed", "frame")
    assert str(1 << 20) in error.message
    assert peer.open()


def test_faults_of_one_connection_do_not_touch_another() -> None:
    hub = HubUnderTest()
    good, bad = hub.connect("alice"), hub.connect("alice")
    tag = good.open()
    for _ in range(20):
        bad.say_frame(b"nonsense")
    hub.done.clear()
    assert good.say(Extend(tag, 0, [1, 2])) == []
    assert len(hub.done) == 1


def sending_on(place: OwnPort | Refusal = OwnPort(9003, "tick-et_1")) -> tuple[HubUnderTest, list[str]]:  # noqa: B008
    """A hub with a port of its own for every target, and the keys that it was asked for."""
    owners: list[str] = []

    def own_port(owner: str) -> OwnPort | Refusal:
        owners.append(owner)
        return place

    return HubUnderTest(own_port=own_port), owners


def test_a_target_is_sent_on_and_all_else_that_comes_there_does_not_count() -> None:
    hub, owners = sending_on()
    peer = hub.connect_silently("alice")
    welcome = only(Welcome, peer.say(a_hello(dedicated=True)))
    assert (welcome.port, welcome.ticket) == (9003, "tick-et_1")
    assert hub.take_done(SendOn) == SendOn(peer.connection.number, 9003)
    assert owners == ["alice"]
    assert peer.say(Open(1, 0, 7), a_hello(dedicated=True), a_hello()) == []
    assert hub.carry_out(hub.protocol.ready("ngram"), peer.connection) == []
    peer.lose()
    assert hub.protocol.sessions() == []
    assert "tick-et_1" not in repr(OwnPort(9003, "tick-et_1"))


def test_at_its_own_port_a_target_is_welcomed_and_its_sessions_go_on() -> None:
    hub, owners = sending_on()
    first = hub.connect_silently(at_own_port=True)
    welcome = only(Welcome, first.say(a_hello(dedicated=True)))
    assert (welcome.port, welcome.ticket) == (0, "")
    tag = first.open()
    first.lose()
    second = hub.connect_silently(at_own_port=True)
    second.say(a_hello(dedicated=True))
    assert only(Opened, second.say(Open(2, 0, 7, resume=tag))).tag == tag
    assert owners == []


def test_a_target_that_knows_nothing_of_own_ports_stays_where_it_is() -> None:
    hub, owners = sending_on()
    peer = hub.connect()
    assert peer.open()
    assert owners == []


def test_a_hub_with_one_port_sends_nobody_on() -> None:
    assert HubUnderTest().connect(dedicated=True).open()


def test_a_target_for_which_there_is_no_port_is_told_when_to_come_back() -> None:
    hub, _ = sending_on(Refusal("busy", "every port is taken", 5000))
    peer = hub.connect_silently()
    error = only(Error, peer.say(a_hello(dedicated=True)))
    assert (error.code, error.scope, error.retry_after_ms) == ("busy", "connection", 5000)
    assert hub.take_done(HangUp).code == 1013


def test_a_target_that_does_not_fit_takes_no_port() -> None:
    hub, owners = sending_on()
    only(Error, hub.connect_silently().say(a_hello(dedicated=True, versions=[9])))
    assert owners == []


def test_names_of_a_target_reach_the_hub_printable() -> None:
    heard: list[Hello] = []

    def choose(hello: Hello) -> Offer:
        heard.append(hello)
        return Offer("ngram", "fp", "none")

    HubUnderTest(choose=choose).connect(target="a\x1b[31m\nb", tokenizer_fp="f\r")
    assert heard[0].target.isprintable()
    assert heard[0].tokenizer_fp.isprintable()


def test_errors_from_the_target_are_never_answered() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = peer.open()
    hub.done.clear()
    assert peer.say(Error("x", "y", "frame"), Error("x", "y", "session"), Error("x", "y", "frame", tag)) == []
    assert hub.done == []
    assert peer.say(Error("x", "y", "session", tag)) == []
    assert len(hub.done) == 1
    assert peer.say(Error("x", "y", "connection")) == []
    assert hub.protocol.sessions() == []
