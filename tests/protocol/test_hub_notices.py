"""What the hub's state machine tells beside what it wants done, and what the hub tells it of its own choices."""

from __future__ import annotations

from dataclasses import replace

from starsd_edge.protocol.codec import decode_from_hub, encode
from starsd_edge.protocol.counters import PathStep
from starsd_edge.protocol.hub_side import (
    AddRows,
    DraftJudged,
    FindPort,
    MessageRefused,
    OwnPort,
    QueueDraft,
    ReportReceived,
    Send,
    SendOn,
    SessionResumed,
    TargetJoined,
)
from starsd_edge.protocol.messages import Draft, DraftRequest, Extend, Open, Report, Welcome
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import HubUnderTest, Peer, a_hello, a_tensor, only, some_features

REPORT = Report(5, 4, 1, 9, 100, 10, 60, 7)


def asked(peer: Peer, tag: bytes, epoch: int, first_row: int, ids: list[int]) -> QueueDraft:
    """A request with these rows; what is queued of it."""
    peer.hub.done.clear()
    assert peer.say(DraftRequest(tag, epoch, first_row + len(ids), first_row, ids, 4, 4, 1)) == []
    rows, queued = peer.hub.done
    assert isinstance(rows, AddRows)
    assert isinstance(queued, QueueDraft)
    return queued


def test_who_joined_resumed_reported_and_was_refused_is_told_in_order() -> None:
    hub = HubUnderTest()
    first = hub.connect(target="orin")
    tag = first.open()
    first.lose()
    second = hub.connect(target="orin")
    second.say(Open(1, 0, 7, resume=tag), REPORT, Extend(b"?" * 16, 0, [1]))
    second.say_frame(b"\xc1")
    one, two = first.connection.number, second.connection.number
    assert one != two
    assert hub.notices == [
        TargetJoined(one, "orin", "ngram"),
        TargetJoined(two, "orin", "ngram"),
        SessionResumed(two, 1),
        ReportReceived(two, REPORT),
        MessageRefused(two, "unknown_session"),
        MessageRefused(two, "malformed"),
    ]


def test_who_is_not_welcomed_has_not_joined() -> None:
    hub = HubUnderTest()
    hub.connect_silently().say(a_hello(versions=[9]))
    hub.connect_silently().say(REPORT)
    assert hub.notices == []


def test_what_became_of_a_draft_is_told_with_the_next_request_and_before_it() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = peer.open()
    queued = asked(peer, tag, 1, 0, [1])
    hub.answer(peer, queued, DraftTree.chain([5, 6, 7]))
    request = DraftRequest(tag, 2, 4, 1, [5, 6, 9], 4, 4, 1)
    actions = peer.connection.receive(encode(request), hub.now, 0)
    assert [type(action) for action in actions] == [AddRows, DraftJudged, QueueDraft]
    assert actions[1] == DraftJudged(queued.session, [PathStep(1, 1), PathStep(1, 1), PathStep(1, 0)])


def test_a_request_that_the_hub_turns_down_is_answered_with_an_empty_draft_once() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    tag = peer.open()
    queued = asked(peer, tag, 1, 0, [1])
    draft = only(Draft, hub.carry_out(hub.protocol.turn_down(queued), peer.connection))
    assert (draft.tag, draft.epoch, draft.base_len, draft.ids) == (tag, 1, 1, [])
    assert hub.answer(peer, queued, DraftTree.chain([5])) == []
    assert peer.say(DraftRequest(tag, 1, 1, 1, [], 4, 4, 1)) == [draft]
    hub.notices.clear()
    asked(peer, tag, 2, 1, [5])
    assert hub.notices == []  # an empty draft that nobody drafted says nothing of a drafter
    assert peer.connection.record.judged == 0
    assert hub.protocol.turn_down(queued) == []


def test_a_draft_is_cut_to_the_shape_that_the_hub_has_chosen() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    queued = asked(peer, peer.open(), 1, 0, [1])
    narrowed = hub.protocol.narrow(queued, DraftShape(2, 2))
    assert narrowed == replace(queued, shape=DraftShape(2, 2))
    assert only(Draft, hub.answer(peer, narrowed, DraftTree.chain([5, 6, 7]))).ids == [5, 6]
    peer.lose()
    hub.protocol.expire(hub.now + 1000)
    assert hub.protocol.narrow(queued, DraftShape(1, 1)).shape == DraftShape(1, 1)


def test_nothing_is_turned_down_where_nobody_waits() -> None:
    hub = HubUnderTest()
    peer = hub.connect()
    queued = asked(peer, peer.open(), 1, 0, [1])
    peer.lose()
    assert hub.protocol.turn_down(queued) == []
    hub.protocol.expire(hub.now + 1000)
    assert hub.protocol.turn_down(queued) == []


def test_a_port_is_asked_for_and_the_target_sent_on_when_it_is_found() -> None:
    hub = HubUnderTest(own_port=lambda owner: OwnPort(1, owner))
    peer = hub.connect_silently("alice")
    actions = peer.connection.receive(encode(a_hello(dedicated=True)), hub.now, 0)
    wanted = only(FindPort, actions)
    assert (wanted.connection, wanted.owner) == (peer.connection.number, "alice")
    sent, leaving = hub.protocol.send_on(wanted, OwnPort(9003, "tick-et"))
    assert isinstance(sent, Send)
    welcome = decode_from_hub(sent.frame)
    assert isinstance(welcome, Welcome)
    assert (welcome.port, welcome.ticket) == (9003, "tick-et")
    assert leaving == SendOn(peer.connection.number, 9003)
    assert hub.notices == []
    peer.lose()
    assert hub.protocol.send_on(wanted, OwnPort(9003, "tick-et")) == []


def test_only_rows_with_features_ask_how_much_waits() -> None:
    hub = HubUnderTest(codec="f2", waiting={"alice": 1 << 40})
    peer = hub.connect("alice")
    tag = peer.open()
    assert peer.say(Extend(tag, 0, [])) == []
    peer.say(Extend(tag, 0, [1], a_tensor(some_features(1))))
    assert hub.notices[-1] == MessageRefused(peer.connection.number, "quota")
