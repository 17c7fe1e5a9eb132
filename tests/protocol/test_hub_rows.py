"""Rows as they arrive at the hub: in order, again, too early, wrong."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.protocol.hub_side import AddRows, DropSession, HubLimits, QueueDraft
from starsd_edge.protocol.messages import DraftRequest, Error, Extend, Open, Resync, Tensor
from tests.support.wire import VOCAB, WIDTH, HubUnderTest, Peer, a_tensor, only, some_features


def fed(hub: HubUnderTest) -> list[tuple[int, list[int]]]:
    """(first row, ids) of each Feed since the last look."""
    done, hub.done = hub.done, []
    return [(action.rows.first_row, list(action.rows.ids)) for action in done if isinstance(action, AddRows)]


def opened(hub: HubUnderTest) -> tuple[Peer, bytes]:
    peer = hub.connect()
    tag = peer.open()
    hub.done.clear()
    return peer, tag


def test_rows_reach_the_drafter_in_order_with_their_features() -> None:
    hub = HubUnderTest(codec="f2")
    peer, tag = opened(hub)
    assert peer.say(Extend(tag, 0, [1, 2, 3], a_tensor(some_features(3)))) == []
    rows = hub.take_done(AddRows).rows
    assert (rows.session, rows.first_row, list(rows.ids)) == (1, 0, [1, 2, 3])
    assert rows.features is not None
    assert np.array_equal(rows.features, some_features(3))


def test_int8_features_reach_the_drafter_as_float16() -> None:
    hub = HubUnderTest(codec="i1")
    peer = hub.connect(codecs=["f2", "i1"])
    tag = peer.open()
    hub.done.clear()
    scales = memoryview(np.array([0.5], "<f2").tobytes())
    assert peer.say(Extend(tag, 0, [1], Tensor("i1", [1, WIDTH], memoryview(bytes(range(WIDTH))), scales))) == []
    features = hub.take_done(AddRows).rows.features
    assert features is not None
    assert features.dtype == np.float16
    assert features[0].tolist() == [index / 2 for index in range(WIDTH)]


@pytest.mark.parametrize("codec", ["f2", "i1"])
def test_features_beyond_what_a_key_may_let_wait_end_their_session_with_a_time_to_come_back(codec: str) -> None:
    hub = HubUnderTest(codec=codec, limits=HubLimits(max_waiting_bytes=1 << 20))
    peer, other = hub.connect("alice", codecs=["f2", "i1"]), hub.connect("bob", codecs=["f2", "i1"])
    tag, others = peer.open(), other.open()
    hub.done.clear()
    row = 2 * WIDTH  # what a row takes once it is read, however it travelled
    features = a_tensor(some_features(4), codec)
    hub.waiting = {"alice": (1 << 20) - 4 * row}
    assert peer.say(Extend(tag, 0, [1] * 4, features)) == []
    assert hub.take_done(AddRows).owner == "alice"
    hub.waiting = {"alice": (1 << 20) - 4 * row + 1}
    error = only(Error, peer.say(DraftRequest(tag, 1, 8, 4, [1] * 4, 8, 4, 1, features)))
    assert (error.code, error.scope, error.tag, error.retry_after_ms) == ("quota", "session", tag, 5000)
    assert "1 MiB" in error.message
    assert "\n" not in error.message
    assert hub.take_done(DropSession).session == 1
    assert other.say(Extend(others, 0, [1] * 4, features)) == []
    assert hub.take_done(AddRows).owner == "bob"
    hub.waiting = {}
    assert peer.say(Extend(peer.open(2), 0, [1] * 4, features)) == []


def test_what_waits_for_the_drafter_holds_nothing_else_of_its_frame() -> None:
    """Elements that a newer target appends, and rows sent again, are gone when the frame is."""
    hub = HubUnderTest(codec="f2")
    peer, tag = opened(hub)
    peer.say(Extend(tag, 0, [1, 2, 3], a_tensor(some_features(3))))
    peer.say(Extend(tag, 0, [1, 2, 3, 4], a_tensor(some_features(4))))
    for action in hub.done:
        assert isinstance(action, AddRows)
        assert action.rows.features is not None
        assert action.rows.features.base is None


def test_rows_sent_again_are_ignored_and_only_what_is_new_is_fed() -> None:
    hub = HubUnderTest(codec="f2")
    peer, tag = opened(hub)
    features = some_features(6)
    peer.say(Extend(tag, 0, [1, 2, 3, 4], a_tensor(features[:4])))
    hub.done.clear()
    assert peer.say(Extend(tag, 0, [1, 2, 3, 4], a_tensor(features[:4]))) == []
    assert peer.say(Extend(tag, 1, [2], a_tensor(features[1:2]))) == []
    assert hub.done == []
    assert peer.say(Extend(tag, 2, [3, 4, 5, 6], a_tensor(features[2:]))) == []
    rows = hub.take_done(AddRows).rows
    assert (rows.first_row, list(rows.ids)) == (4, [5, 6])
    assert rows.features is not None
    assert np.array_equal(rows.features, features[4:])


def test_an_empty_extend_changes_nothing() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert peer.say(Extend(tag, 0, []), Extend(tag, 0, [1, 2]), Extend(tag, 2, []), Extend(tag, 1, [])) == []
    assert fed(hub) == [(0, [1, 2])]


@pytest.mark.parametrize("first_row", [0, 1, 2])
def test_rows_that_differ_from_those_held_end_the_session_only(first_row: int) -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    other = peer.open(2)
    peer.say(Extend(tag, 0, [1, 2, 3]))
    hub.done.clear()
    error = only(Error, peer.say(Extend(tag, first_row, [*[1, 2, 3][first_row:2], 9, 4])))
    assert (error.code, error.scope, error.tag) == ("row_conflict", "session", tag)
    hub.take_done(DropSession)
    assert peer.say(Extend(other, 0, [1])) == []


def test_a_gap_is_answered_with_one_resync_from_the_rows_held() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(Extend(tag, 0, [1, 2]))
    hub.done.clear()
    assert only(Resync, peer.say(Extend(tag, 3, [4]))) == Resync(tag, 2)
    assert peer.say(Extend(tag, 4, [5]), DraftRequest(tag, 1, 6, 5, [6], 8, 4, 1)) == []
    assert hub.done == []
    assert peer.say(Extend(tag, 2, [3, 4, 5, 6])) == []
    assert fed(hub) == [(2, [3, 4, 5, 6])]
    assert only(Resync, peer.say(Extend(tag, 9, [1]))) == Resync(tag, 6)


def test_a_resync_that_nothing_came_of_is_repeated_after_a_while() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert only(Resync, peer.say(Extend(tag, 3, [4]))).from_row == 0
    hub.now += 0.5
    assert peer.say(Extend(tag, 3, [4])) == []
    hub.now += 0.5
    assert only(Resync, peer.say(Extend(tag, 3, [4]))).from_row == 0


def test_a_resumed_session_is_told_of_the_same_gap_again() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert only(Resync, peer.say(Extend(tag, 3, [4]))).from_row == 0
    peer.lose()
    back = hub.connect()
    back.say(Open(1, 0, 7, resume=tag))
    assert only(Resync, back.say(Extend(tag, 3, [4]))).from_row == 0


def test_a_request_behind_a_gap_may_come_again_under_the_same_epoch() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert only(Resync, peer.say(DraftRequest(tag, 1, 4, 3, [4], 8, 4, 1))).from_row == 0
    assert peer.say(DraftRequest(tag, 1, 4, 0, [1, 2, 3, 4], 8, 4, 1)) == []
    feed, queued = hub.done
    assert isinstance(feed, AddRows)
    assert isinstance(queued, QueueDraft)
    assert (queued.epoch, queued.base_len) == (1, 4)


@pytest.mark.parametrize(
    "message",
    [
        Extend(b"", 0, [VOCAB], a_tensor(some_features(1))),
        Extend(b"", 0, [1]),
        Extend(b"", 0, [1, 2], a_tensor(some_features(1))),
        Extend(b"", 0, [1], a_tensor(np.full((1, WIDTH), np.inf, np.float16))),
        Extend(b"", 50, [1], a_tensor(some_features(1, width=4))),
        DraftRequest(b"", 1, 1, 0, [1], 8, 4, 1, a_tensor(some_features(2))),
    ],
    ids=["id", "no features", "fewer features", "infinite", "narrow, behind a gap", "request"],
)
def test_rows_that_cannot_be_end_the_session_and_nothing_of_them_is_kept(message: Extend | DraftRequest) -> None:
    hub = HubUnderTest(codec="f2")
    peer, tag = opened(hub)
    other = peer.open(2)
    hub.done.clear()
    fields = {name: getattr(message, name) for name in message.__struct_fields__} | {"tag": tag}
    error = only(Error, peer.say(type(message)(**fields)))
    assert (error.code, error.scope, error.tag) == ("malformed", "session", tag)
    assert hub.take_done(DropSession).session == 1
    assert peer.say(Extend(other, 0, [1], a_tensor(some_features(1)))) == []


def test_a_request_of_epoch_0_costs_itself() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    error = only(Error, peer.say(DraftRequest(tag, 0, 1, 0, [1], 8, 4, 1)))
    assert (error.code, error.scope, error.tag) == ("malformed", "frame", None)
    assert "epoch" in error.message or ">= 1" in error.message
    assert peer.say(Extend(tag, 0, [1])) == []


def test_a_target_that_breaks_session_after_session_is_shown_out() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    scopes = []
    for ref in range(1, 9):
        tag = peer.open(ref)
        scopes += [message.scope for message in peer.say(Extend(tag, 0, [VOCAB])) if isinstance(message, Error)]
    assert scopes == ["session"] * 8 + ["connection"]


def test_rows_beyond_the_context_end_the_session() -> None:
    hub = HubUnderTest()
    peer = hub.connect(max_context=10)
    tag = peer.open()
    assert peer.say(Extend(tag, 0, [1] * 9)) == []
    error = only(Error, peer.say(Extend(tag, 9, [1])))
    assert (error.code, error.scope) == ("context_full", "session")


def test_the_hub_keeps_no_more_ids_than_its_own_limit_whatever_the_target_says() -> None:
    hub = HubUnderTest(limits=HubLimits(max_context=10))
    peer = hub.connect(max_context=(1 << 31) - 1)
    tag = peer.open()
    assert peer.say(Extend(tag, 0, [1] * 9)) == []
    assert only(Error, peer.say(Extend(tag, 9, [1]))).code == "context_full"
