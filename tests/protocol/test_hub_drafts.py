"""Requests and drafts at the hub: epochs, base_len, shapes, drafts that come late or to nobody."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from starsd_edge.protocol.codes import MAX_OFFENCES
from starsd_edge.protocol.hub_side import AddRows, Away, Back, DropSession, HubLimits, QueueDraft
from starsd_edge.protocol.messages import Draft, DraftRequest, Error, Extend, Open, Resync
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import HubUnderTest, Peer, only


def opened(hub: HubUnderTest, **hello: object) -> tuple[Peer, bytes]:
    """A session with rows 0..3."""
    peer = hub.connect(**hello)
    tag = peer.open()
    assert peer.say(Extend(tag, 0, [1, 2, 3, 4])) == []
    hub.done.clear()
    return peer, tag


def a_request(tag: bytes, epoch: int, base_len: int = 4, ids: list[int] | None = None, nodes: int = 8) -> DraftRequest:
    rows = ids or []
    return DraftRequest(tag, epoch, base_len, base_len - len(rows), rows, nodes, 4, 2)


def test_a_request_is_fed_queued_and_answered() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert peer.say(a_request(tag, 1, 6, [5, 6])) == []
    feed, queued = hub.done
    assert isinstance(feed, AddRows)
    assert queued == QueueDraft(1, 1, 6, DraftShape(8, 4, 2), hub.now, "alice")
    hub.now += 0.25
    draft = only(Draft, hub.answer(peer, queued, DraftTree.chain([7, 8])))
    assert draft == Draft(tag, 1, 6, [7, 8], [-1, 0], 5, 7, 250_000)


def round_of(hub: HubUnderTest, peer: Peer, request: DraftRequest, after_s: float = 0.0) -> QueueDraft:
    """A request that comes after so long, and its answer 10 ms later."""
    hub.now += after_s
    peer.say(request)
    queued = hub.take_done(QueueDraft)
    hub.now += 0.01
    hub.answer(peer, queued, DraftTree.chain([7, 8]))
    return queued


def test_a_request_tells_how_long_the_round_before_took_from_its_draft_on() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    assert round_of(hub, peer, a_request(tag, 1)).returned_s is None
    told = msgspec.structs.replace(a_request(tag, 2), target_us=62_500)
    second = round_of(hub, peer, told, after_s=0.125)
    assert second.returned_s == pytest.approx(0.125)
    assert second.target_s == 0.0625


def test_a_request_that_follows_no_draft_ends_no_round() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    round_of(hub, peer, a_request(tag, 1))
    peer.say(Extend(tag, 4, [5]))  # a new prompt begins
    hub.take_done(AddRows)
    assert round_of(hub, peer, a_request(tag, 2, 5), after_s=5.0).returned_s is None
    peer.say(a_request(tag, 3, 5))
    hub.take_done(QueueDraft)
    assert round_of(hub, peer, a_request(tag, 4, 5)).returned_s is None  # the one before was never answered


def test_a_request_that_had_to_be_sent_again_ends_no_round() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    round_of(hub, peer, a_request(tag, 1))
    only(Resync, peer.say(a_request(tag, 2, 7, [7])))  # rows 4 and 5 never came
    peer.say(a_request(tag, 2, 7, [5, 6, 7]))
    queued = hub.done[-1]
    assert isinstance(queued, QueueDraft)
    assert (queued.epoch, queued.returned_s) == (2, None)


def test_the_return_of_a_session_that_changed_its_connection_is_no_round() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    round_of(hub, peer, a_request(tag, 1))
    peer.lose()
    again = hub.connect()
    again.say(Open(2, 0, 7, resume=tag))
    assert round_of(hub, again, a_request(tag, 2), after_s=1.0).returned_s is None


def test_the_same_request_again_brings_the_cached_draft() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    request = a_request(tag, 1, 6, [5, 6])
    peer.say(request)
    queued = hub.done[-1]
    assert isinstance(queued, QueueDraft)
    hub.done.clear()
    assert peer.say(request) == []
    assert hub.done == []
    draft = only(Draft, hub.answer(peer, queued, DraftTree.chain([7, 8])))
    peer.say(Extend(tag, 6, [7]))
    hub.done.clear()
    again = only(Draft, peer.say(request))
    assert (again.epoch, again.base_len, again.ids) == (draft.epoch, draft.base_len, draft.ids)
    assert hub.done == []


def test_the_draft_of_an_older_epoch_is_not_taken_for_that_of_a_newer() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    hub.answer(peer, hub.take_done(QueueDraft), DraftTree.chain([7, 8]))
    peer.say(a_request(tag, 2))
    assert peer.say(a_request(tag, 2)) == []
    assert hub.answer(peer, replace(hub.take_done(QueueDraft), base_len=3), DraftTree.chain([7, 8])) == []


def test_lower_epochs_are_ignored() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 5))
    hub.done.clear()
    assert peer.say(a_request(tag, 4)) == []
    assert hub.done == []


def test_a_draft_still_being_made_is_answered_with_its_own_epoch_and_base() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    running = hub.take_done(QueueDraft)
    peer.say(a_request(tag, 2, 5, [5]), a_request(tag, 3, 6, [6]))
    newest = hub.done[-1]
    assert isinstance(newest, QueueDraft)
    late = only(Draft, hub.answer(peer, running, DraftTree.chain([9])))
    assert (late.epoch, late.base_len) == (1, 4)
    assert peer.say(a_request(tag, 3, 6, [6])) == []
    draft = only(Draft, hub.answer(peer, newest, DraftTree.chain([9])))
    assert (draft.epoch, draft.base_len) == (3, 6)


def test_each_request_is_answered_once() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    queued = hub.take_done(QueueDraft)
    peer.say(a_request(tag, 2))
    newest = hub.take_done(QueueDraft)
    assert len(hub.answer(peer, newest, DraftTree.chain([9]))) == 1
    assert hub.answer(peer, newest, DraftTree.chain([9])) == []
    assert hub.answer(peer, queued, DraftTree.chain([9])) == []
    assert hub.answer(peer, replace(newest, epoch=77), DraftTree.chain([9])) == []


def test_extend_is_legal_while_a_request_is_outstanding_and_changes_nothing_of_it() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    queued = hub.take_done(QueueDraft)
    assert peer.say(Extend(tag, 4, [5, 6, 7])) == []
    hub.take_done(AddRows)
    assert only(Draft, hub.answer(peer, queued, DraftTree.chain([9]))).base_len == 4


@pytest.mark.parametrize("base_len", [3, 5, 1000])
def test_a_base_len_that_is_not_the_rows_held_is_named_and_costs_the_request(base_len: int) -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    error = only(Error, peer.say(DraftRequest(tag, 1, base_len, 4, [], 8, 4, 1)))
    assert (error.code, error.scope, error.tag, error.epoch) == ("base_len", "frame", tag, 1)
    assert str(base_len) in error.message
    assert "4" in error.message
    assert peer.say(a_request(tag, 1)) == []
    hub.take_done(QueueDraft)


def test_rows_of_a_request_with_a_wrong_base_len_are_kept() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    only(Error, peer.say(DraftRequest(tag, 1, 4, 4, [5], 8, 4, 1)))
    assert list(hub.take_done(AddRows).rows.ids) == [5]
    assert peer.say(a_request(tag, 2, 5)) == []


@pytest.mark.parametrize(
    ("hello", "limits", "asked", "shape"),
    [
        ({}, {}, (1000, 1000, 3), (31, 8, 3)),
        ({"max_tree": 6}, {}, (1000, 3, 3), (5, 3, 3)),
        ({}, {"max_nodes": 3, "max_depth": 2}, (1000, 1000, 0), (3, 2, 1)),
        ({"max_context": 8}, {}, (20, 8, 1), (20, 3, 1)),
        ({}, {"max_context": 7}, (20, 8, 1), (20, 2, 1)),
        ({"chains_only": True}, {}, (4, 4, 9), (4, 4, 1)),
    ],
)
def test_shapes_are_cut_to_what_both_sides_allow(
    hello: dict[str, object], limits: dict[str, int], asked: tuple[int, int, int], shape: tuple[int, int, int]
) -> None:
    hub = HubUnderTest(limits=HubLimits(**limits))  # type: ignore[arg-type]
    peer, tag = opened(hub, **hello)
    peer.say(DraftRequest(tag, 1, 4, 4, [], *asked))
    assert hub.take_done(QueueDraft).shape == DraftShape(*shape)


@pytest.mark.parametrize(
    ("hello", "request_shape"), [({"max_tree": 1}, (8, 4, 1)), ({"max_context": 5}, (8, 4, 1)), ({}, (0, 4, 1))]
)
def test_where_no_node_may_be_the_empty_tree_comes_without_the_drafter(
    hello: dict[str, object], request_shape: tuple[int, int, int]
) -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub, **hello)
    request = DraftRequest(tag, 1, 4, 4, [], *request_shape)
    draft = only(Draft, peer.say(request))
    assert (draft.ids, draft.epoch, draft.base_len) == ([], 1, 4)
    assert hub.done == []
    assert only(Draft, peer.say(request)).ids == []


def test_a_drafter_that_gives_more_than_asked_is_cut() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(DraftRequest(tag, 1, 4, 4, [], 3, 2, 1))
    draft = only(Draft, hub.answer(peer, hub.take_done(QueueDraft), DraftTree.chain([1, 2, 3, 4, 5])))
    assert (draft.ids, draft.parents) == ([1, 2], [-1, 0])


def test_a_drafter_that_branches_more_than_asked_is_cut() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(DraftRequest(tag, 1, 4, 4, [], 8, 4, 2))
    tree = DraftTree(np.array([1, 2, 3, 4, 5, 6]), np.array([-1, 0, 0, 0, -1, -1], dtype=np.int32))
    draft = only(Draft, hub.answer(peer, hub.take_done(QueueDraft), tree))
    assert (draft.ids, draft.parents) == ([1, 2, 3, 5], [-1, 0, 0, -1])


def test_a_draft_for_a_target_that_is_away_waits_for_its_resume() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    request = a_request(tag, 1)
    peer.say(request)
    queued = hub.take_done(QueueDraft)
    peer.lose()
    assert hub.answer(peer, queued, DraftTree.chain([9])) == []
    back = hub.connect()
    back.say(Open(1, 0, 7, resume=tag))
    assert only(Draft, back.say(request)).ids == [9]


def test_a_failing_drafter_ends_that_session_only() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    other = peer.open(2)
    peer.say(a_request(tag, 3))
    hub.done.clear()
    error = only(Error, hub.carry_out(hub.protocol.failed(1, 3, "out of memory"), peer.connection))
    assert (error.code, error.message, error.scope) == ("drafter_failed", "out of memory", "session")
    assert (error.tag, error.epoch) == (tag, 3)
    hub.take_done(DropSession)
    assert hub.protocol.failed(1, 3, "again") == []
    assert only(Error, peer.say(a_request(tag, 4))).code == "unknown_session"
    assert peer.say(a_request(other, 1, 1, [1])) == []


def test_a_failing_drafter_drops_the_session_of_an_absent_target() -> None:
    hub = HubUnderTest()
    peer, _ = opened(hub)
    peer.lose()
    assert hub.protocol.failed(1, 1, "x") == [DropSession(1)]


def test_a_flood_of_requests_leaves_a_bounded_memory_of_them() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    for epoch in range(1, 1000):
        assert peer.say(a_request(tag, epoch)) == []
    queued = [action for action in hub.done if isinstance(action, QueueDraft)]
    assert len(queued) == 999
    answered = [hub.answer(peer, request, DraftTree.chain([9])) for request in queued]
    assert sum(map(len, answered)) <= 16
    assert len(answered[-1]) == 1


@pytest.mark.parametrize("how", ["the socket", "eight offences", "the target's word", "a takeover"])
def test_a_request_does_not_outlive_its_connection_however_that_ends(how: str) -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    if how == "the socket":
        peer.lose()
    elif how == "eight offences":
        for _ in range(MAX_OFFENCES):
            peer.say_frame(b"junk")
    elif how == "the target's word":
        peer.say(Error("malformed", "enough", "connection"))
    else:
        hub.connect().say(Open(1, 0, 7, resume=tag))
    assert hub.moves[0] == Away(1)
    assert (hub.moves[1:] == [Back(1)]) == (how == "a takeover")
    before = list(hub.moves)
    peer.lose()
    assert hub.moves == before


def test_a_request_that_went_with_its_connection_may_be_asked_again_under_its_epoch() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    peer.lose()
    back = hub.connect()
    back.say(Open(1, 0, 7, resume=tag))
    hub.done.clear()
    assert back.say(a_request(tag, 1)) == []
    queued = hub.take_done(QueueDraft)
    assert back.say(a_request(tag, 1)) == []
    assert hub.done == []
    assert only(Draft, hub.answer(back, queued, DraftTree.chain([9]))).ids == [9]


def test_a_resume_on_the_same_connection_loses_no_request() -> None:
    hub = HubUnderTest()
    peer, tag = opened(hub)
    peer.say(a_request(tag, 1))
    queued = hub.take_done(QueueDraft)
    peer.say(Open(9, 0, 7, resume=tag))
    assert hub.moves == []
    assert only(Draft, hub.answer(peer, queued, DraftTree.chain([9]))).ids == [9]
