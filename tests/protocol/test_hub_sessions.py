"""Whose session is whose at the hub: opening, resuming, taking over, expiring, closing."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.hub_side import AddRows, DropSession, HubLimits, OpenSession, QueueDraft
from starsd_edge.protocol.messages import (
    Close,
    Closed,
    Draft,
    DraftRequest,
    Error,
    Extend,
    Open,
    Opened,
    TargetMessage,
)
from starsd_edge.speculation.tree import DraftTree
from tests.support.wire import CONTEXT, VOCAB, HubUnderTest, Peer, only


def with_rows(hub: HubUnderTest, peer: Peer, rows: int = 5) -> bytes:
    """A session that holds rows 0..rows-1, ids as their index."""
    tag = peer.open()
    assert peer.say(Extend(tag, 0, list(range(rows)))) == []
    hub.done.clear()
    return tag


def refused(peer: Peer, message: TargetMessage) -> Error:
    return only(Error, peer.say(message))


def test_open_tells_the_drafter_and_gives_a_tag() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    opened = only(Opened, peer.say(Open(9, 0, 7, sampling_kind="greedy")))
    assert (opened.ref, opened.rows_held, len(opened.tag)) == (9, 0, 16)
    assert hub.take_done(OpenSession) == OpenSession(1, "ngram", 0, 7)


def test_under_a_draft_window_a_session_begins_at_its_first_row() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    opened = only(Opened, peer.say(Open(1, 100, 7)))
    assert opened.rows_held == 100
    assert hub.take_done(OpenSession).first_row == 100
    assert peer.say(Extend(opened.tag, 100, [1, 2])) == []
    assert hub.take_done(AddRows).rows.first_row == 100
    error = refused(peer, Extend(opened.tag, 99, [1]))
    assert (error.code, error.scope) == ("malformed", "session")
    assert only(Closed, peer.say(Close(opened.tag))).rows_freed == 0


def test_the_same_open_again_is_answered_with_the_same_session() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    first, again = peer.say(Open(1, 0, 7), Open(1, 0, 7))
    assert first == again
    assert len(hub.protocol.sessions()) == 1
    assert refused(peer, Open(1, 0, 8)).code == "out_of_order"


@pytest.mark.parametrize(
    "message", [Open(5, 0, VOCAB), Open(5, CONTEXT, 7), Open(5, 0, 7, "eagle")], ids=["id", "first row", "drafter"]
)
def test_an_open_that_cannot_be_is_refused_by_ref(message: Open) -> None:
    hub = HubUnderTest()
    error = refused(hub.connect(), message)
    assert (error.scope, error.ref, error.tag) == ("session", 5, None)
    assert hub.done == []


def test_a_connection_holds_as_many_sessions_as_it_may() -> None:
    hub = HubUnderTest(limits=HubLimits(max_sessions_per_connection=2))
    peer = hub.connect()
    first, _ = peer.open(1), peer.open(2)
    error = refused(peer, Open(3, 0, 7))
    assert (error.code, error.scope, error.ref) == ("too_many_sessions", "session", 3)
    assert error.retry_after_ms > 0
    peer.say(Close(first))
    assert peer.open(4)
    assert hub.connect().open(1)


def test_a_full_hub_gives_up_who_has_been_away_for_longest_before_it_refuses() -> None:
    hub = HubUnderTest(limits=HubLimits(max_sessions=2))
    here, leaving = hub.connect(), hub.connect()
    here.open(1)
    leaving.open(1)
    leaving.lose()
    hub.done.clear()
    here.open(2)
    assert [type(action) for action in hub.done] == [DropSession, OpenSession]
    error = refused(here, Open(3, 0, 7))
    assert (error.code, error.ref) == ("too_many_sessions", 3)
    assert error.retry_after_ms > 0


@pytest.mark.parametrize("kind", ["extend", "request"])
def test_foreign_and_unknown_tags_are_answered_alike(kind: str) -> None:
    """Nothing in the answer, nor a side effect, tells whether somebody has a session of that tag."""
    hub = HubUnderTest()
    owner, stranger, elsewhere = hub.connect("alice"), hub.connect("mallory"), hub.connect("alice")
    tag = with_rows(hub, owner)
    unknown = b"\xff" * 16

    def message(named: bytes) -> TargetMessage:
        return Extend(named, 5, [1]) if kind == "extend" else DraftRequest(named, 3, 6, 5, [1], 8, 4, 1)

    answers = []
    for peer in (stranger, elsewhere):
        for named in (tag, unknown):
            error = refused(peer, message(named))
            assert error.tag == named
            assert (error.scope, error.code, error.epoch) == ("frame", "unknown_session", 0 if kind == "extend" else 3)
            answers.append((error.message, error.retry_after_ms, error.ref))
    assert len(set(answers)) == 1
    assert hub.done == []
    assert owner.say(Extend(tag, 5, [1])) == []
    hub.take_done(AddRows)


def test_unknown_tags_are_no_offence_however_many() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    for _ in range(50):
        assert refused(peer, Extend(b"\xff" * 16, 0, [1])).scope == "frame"
    assert peer.open()


def test_closing_a_foreign_or_unknown_tag_frees_nothing_and_is_answered_alike() -> None:
    hub = HubUnderTest()
    owner, stranger = hub.connect("alice"), hub.connect("mallory")
    tag = with_rows(hub, owner)
    assert only(Closed, stranger.say(Close(tag))) == Closed(tag, 0)
    assert only(Closed, stranger.say(Close(b"\xff" * 16))) == Closed(b"\xff" * 16, 0)
    assert hub.done == []


def test_close_is_idempotent_and_drops_queued_work() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    assert peer.say(DraftRequest(tag, 1, 5, 5, [], 8, 4, 1)) == []
    queued = hub.take_done(QueueDraft)
    assert only(Closed, peer.say(Close(tag))).rows_freed == 5
    assert hub.take_done(DropSession).session == queued.session
    assert only(Closed, peer.say(Close(tag))).rows_freed == 0
    assert hub.done == []
    assert hub.answer(peer, queued, DraftTree.chain([1])) == []
    assert refused(peer, Extend(tag, 5, [1])).code == "unknown_session"


def test_a_session_survives_its_connection_and_is_resumed_by_its_owner() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    hub.now += 29
    assert hub.protocol.expire(hub.now) == []
    back = hub.connect()
    assert only(Opened, back.say(Open(3, 0, 7, resume=tag))) == Opened(3, tag, 5)
    assert back.say(Extend(tag, 5, [5])) == []
    assert hub.take_done(AddRows).rows.first_row == 5
    hub.now += 1000
    assert hub.protocol.expire(hub.now) == []


def test_a_session_is_gone_after_the_grace() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    hub.now += 31
    assert [type(action) for action in hub.protocol.expire(hub.now)] == [DropSession]
    assert hub.protocol.expire(hub.now) == []
    error = refused(hub.connect(), Open(3, 0, 7, resume=tag))
    assert (error.code, error.scope, error.ref, error.tag) == ("unknown_session", "session", 3, tag)


def test_the_grace_ends_on_time_even_if_nobody_looked() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    hub.now += 31
    assert refused(hub.connect(), Open(3, 0, 7, resume=tag)).code == "unknown_session"


def test_only_those_away_for_too_long_expire() -> None:
    hub = HubUnderTest()
    first, second, present = hub.connect(), hub.connect(), hub.connect()
    first.open()
    second.open()
    present.open()
    first.lose()
    hub.now += 20
    second.lose()
    hub.now += 20
    assert hub.protocol.expire(hub.now) == [DropSession(1)]
    assert [view.attached for view in hub.protocol.sessions()] == [False, True]


def test_resuming_a_foreign_session_looks_like_an_expired_one() -> None:
    hub = HubUnderTest()
    owner = hub.connect("alice")
    tag = with_rows(hub, owner)
    stranger = hub.connect("mallory")
    foreign = refused(stranger, Open(3, 0, 7, resume=tag))
    unknown = refused(stranger, Open(3, 0, 7, resume=b"\xff" * 16))
    assert (foreign.code, foreign.message, foreign.scope) == (unknown.code, unknown.message, unknown.scope)
    assert owner.say(Extend(tag, 5, [1])) == []


def test_a_resume_takes_the_session_over_from_a_lingering_connection() -> None:
    hub = HubUnderTest()
    old = hub.connect()
    tag = with_rows(hub, old)
    new = hub.connect()
    assert only(Opened, new.say(Open(1, 0, 7, resume=tag))).rows_held == 5
    assert refused(old, Extend(tag, 5, [9])).code == "unknown_session"
    assert new.say(DraftRequest(tag, 1, 6, 5, [5], 8, 4, 1)) == []
    _, queued = hub.done
    assert isinstance(queued, QueueDraft)
    actions = hub.protocol.answer(queued.session, 1, 6, DraftTree.chain([1]), 0, 0, hub.now)
    assert hub.carry_out(actions, old.connection) == []
    assert isinstance(hub.carry_out(actions, new.connection)[0], Draft)
    old.lose()
    hub.now += 1000
    assert hub.protocol.expire(hub.now) == []
    assert new.say(Extend(tag, 6, [6])) == []


def test_a_resume_on_the_same_connection_is_answered_again() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    for ref in (2, 2, 3):
        assert only(Opened, peer.say(Open(ref, 0, 7, resume=tag))) == Opened(ref, tag, 5)
    assert len(hub.protocol.sessions()) == 1


@pytest.mark.parametrize("change", [{"vocab_size": VOCAB + 1}, {"tokenizer_fp": "other"}, {"feature_width": 4}])
def test_a_target_that_has_become_another_model_cannot_resume(change: dict[str, object]) -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    assert refused(hub.connect(**change), Open(1, 0, 7, resume=tag)).code == "unknown_session"


def test_a_resume_needs_room_on_its_connection() -> None:
    hub = HubUnderTest(limits=HubLimits(max_sessions_per_connection=1))
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    back = hub.connect()
    back.open(1)
    assert refused(back, Open(2, 0, 7, resume=tag)).code == "too_many_sessions"
    assert only(Opened, hub.connect().say(Open(1, 0, 7, resume=tag))).rows_held == 5


def test_a_resume_that_tells_another_beginning_is_refused_and_harms_nothing() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    back = hub.connect()
    assert refused(back, Open(1, 0, 8, resume=tag)).code == "unknown_session"
    assert only(Opened, back.say(Open(2, 0, 7, resume=tag))).rows_held == 5


def test_an_owner_closes_a_session_left_behind_on_another_connection() -> None:
    hub = HubUnderTest()
    old = hub.connect()
    tag = with_rows(hub, old)
    new = hub.connect()
    assert only(Closed, new.say(Close(tag))).rows_freed == 5
    hub.take_done(DropSession)
    old.lose()
    assert hub.protocol.sessions() == []


def test_many_sessions_share_a_connection_and_end_one_by_one() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tags = [peer.open(ref) for ref in range(1, 17)]
    assert len(set(tags)) == 16
    hub.done.clear()
    assert refused(peer, Extend(tags[3], 0, [VOCAB])).scope == "session"
    assert hub.take_done(DropSession).session == 4
    for tag in (*tags[:3], *tags[4:]):
        assert peer.say(Extend(tag, 0, [1])) == []


def test_fifty_comings_and_goings_leave_nothing_behind() -> None:
    hub = HubUnderTest()
    for turn in range(50):
        peer = hub.connect()
        tag = with_rows(hub, peer)
        if turn % 2:
            peer.say(Close(tag))
        peer.lose()
        hub.now += 1
    hub.now += 31
    hub.protocol.expire(hub.now)
    assert hub.protocol.sessions() == []
    assert hub.protocol.ready("ngram") == []


def test_a_second_shorter_prompt_on_the_same_connection_begins_from_nothing() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    peer.say(Close(with_rows(hub, peer, rows=50)))
    hub.done.clear()
    opened = only(Opened, peer.say(Open(2, 0, 7)))
    assert opened.rows_held == 0
    assert hub.take_done(OpenSession).session == 2
    assert peer.say(DraftRequest(opened.tag, 1, 3, 0, [1, 2, 3], 8, 4, 1)) == []
    assert isinstance(hub.done[-1], QueueDraft)


def test_a_lost_connection_says_nothing_more_and_may_be_lost_twice() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = with_rows(hub, peer)
    peer.lose()
    hub.now += 10
    peer.lose()
    assert peer.say(Extend(tag, 5, [1])) == []
    assert hub.protocol.ready("ngram") == []
    hub.now += 25
    assert len(hub.protocol.expire(hub.now)) == 1
