"""Requests and drafts at the target: shapes, epochs, late and lying drafts."""

from __future__ import annotations

import pytest

from starsd_edge.protocol.messages import Draft, DraftRequest, Open, Opened
from starsd_edge.protocol.target_side import DraftArrived, SessionOpened, TargetSession
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.wire import TargetUnderTest, a_welcome, only

TAG = b"t" * 16


def opened(
    welcome: dict[str, object] | None = None, rows: int = 4, **hello: object
) -> tuple[TargetUnderTest, TargetSession]:
    target = TargetUnderTest(**({"codecs": []} | hello))
    target.connect(a_welcome(**(welcome or {})))
    session = target.open(TAG)
    session.append(range(rows))
    return target, session


def a_draft(epoch: int = 1, base_len: int = 4, ids: list[int] | None = None, parents: list[int] | None = None) -> Draft:
    tokens = [5, 6] if ids is None else ids
    return Draft(
        TAG, epoch, base_len, tokens, list(range(-1, len(tokens) - 1)) if parents is None else parents, 1, 2, 9
    )


def test_a_draft_arrives_with_its_figures() -> None:
    target, session = opened()
    epoch = session.request(DraftShape(8, 4))
    target.clock.now += 0.125
    event = only(DraftArrived, target.hear(a_draft()))
    assert (event.session, event.epoch, event.base_len, event.tree) == (session, epoch, 4, DraftTree.chain([5, 6]))
    assert (event.round_trip_us, event.hub_us, event.queue_us, event.service_us) == (125_000, 9, 1, 2)
    assert event.frame_bytes == target.protocol.counters.bytes_down["Draft"]


def test_a_request_tells_what_passed_here_since_the_draft_before() -> None:
    target, session = opened()
    told = []
    for epoch, passed_s in ((1, 0.5), (2, 0.125), (3, 0.25)):
        target.clock.now += passed_s
        session.request(DraftShape(8, 4))
        told.append(only(DraftRequest, target.sent()).target_us)
        target.clock.now += 0.01  # on the link and at the hub: of no account here
        if epoch < 3:
            target.hear(a_draft(epoch))
    session.request(DraftShape(8, 4))  # the third was not answered
    told.append(only(DraftRequest, target.sent()).target_us)
    assert told == [0, 125_000, 250_000, 0]


def test_a_draft_arrives_once() -> None:
    target, session = opened()
    session.request(DraftShape(8, 4))
    assert len(target.hear(a_draft(), a_draft())) == 1
    assert target.protocol.counters.dropped["late"] == 1


def test_a_late_draft_arrives_with_its_own_base_for_the_caller_to_rebase() -> None:
    target, session = opened()
    session.request(DraftShape(8, 4))
    session.append([5])
    session.request(DraftShape(8, 4))
    session.append([6, 7])
    late = only(DraftArrived, target.hear(a_draft(1, 4)))
    assert (late.epoch, late.base_len) == (1, 4)
    assert only(DraftArrived, target.hear(a_draft(2, 5))).epoch == 2
    assert session.rows == 7


def test_once_a_newer_draft_is_there_an_older_one_is_dropped() -> None:
    target, session = opened()
    session.request(DraftShape(8, 4))
    session.request(DraftShape(8, 4))
    assert only(DraftArrived, target.hear(a_draft(2))).epoch == 2
    assert target.hear(a_draft(1)) == []


def test_asking_again_for_a_lost_draft_is_a_new_epoch() -> None:
    target, session = opened()
    assert [session.request(DraftShape(8, 4)) for _ in range(3)] == [1, 2, 3]
    assert [message.epoch for message in target.sent() if isinstance(message, DraftRequest)] == [1, 2, 3]
    assert only(DraftArrived, target.hear(a_draft(3))).epoch == 3


@pytest.mark.parametrize(
    ("welcome", "hello", "asked", "sent"),
    [
        ({}, {}, (100, 100, 3), (31, 8, 3)),
        ({"max_nodes": 5, "max_depth": 2}, {}, (100, 100, 3), (5, 2, 3)),
        ({}, {"max_tree": 3}, (100, 4, 0), (2, 4, 1)),
        ({}, {"chains_only": True}, (9, 4, 4), (9, 4, 1)),
        ({}, {"max_context": 8}, (9, 8, 1), (9, 3, 1)),
        ({}, {"max_context": 5}, (9, 8, 1), (9, 0, 1)),
        ({}, {"max_tree": 1}, (9, 8, 1), (0, 8, 1)),
    ],
)
def test_shapes_are_cut_before_they_are_asked_for(
    welcome: dict[str, object], hello: dict[str, object], asked: tuple[int, int, int], sent: tuple[int, int, int]
) -> None:
    target, session = opened(welcome, **hello)
    session.request(DraftShape(*asked))
    message = only(DraftRequest, target.sent())
    assert (message.max_nodes, message.max_depth, message.branching) == sent


@pytest.mark.parametrize(
    "draft",
    [
        a_draft(ids=[1, 2, 3, 4]),
        a_draft(ids=[1, 2, 3], parents=[-1, 0, 1]),
        a_draft(ids=[1, 2], parents=[-1, -1]),
        a_draft(ids=[1000]),
        a_draft(ids=[1, 2], parents=[-1]),
        a_draft(ids=[1, 2], parents=[-1, 1]),
        a_draft(ids=[1], parents=[0]),
        a_draft(base_len=3),
        a_draft(base_len=5),
        a_draft(epoch=0),
    ],
    ids=["nodes", "depth", "branching", "id", "lengths", "cycle", "no root", "earlier base", "later base", "epoch 0"],
)
def test_a_draft_that_breaks_what_was_asked_is_dropped_and_counted(draft: Draft) -> None:
    target, session = opened()
    session.request(DraftShape(3, 2, 1))
    assert target.hear(draft) == []
    assert target.protocol.counters.dropped["malformed"] == 1
    assert session.is_open
    assert only(DraftArrived, target.hear(a_draft())).tree == DraftTree.chain([5, 6])


def test_limits_are_those_of_the_request_and_not_of_the_moment() -> None:
    target, session = opened()
    session.request(DraftShape(4, 4, 1))
    session.request(DraftShape(1, 1, 1))
    assert target.hear(a_draft(2, ids=[1, 2])) == []
    assert len(only(DraftArrived, target.hear(a_draft(1, ids=[1, 2, 3, 4]))).tree) == 4


@pytest.mark.parametrize("draft", [a_draft(epoch=2), Draft(b"?" * 16, 1, 4, [], [], 0, 0, 0)])
def test_a_draft_that_nobody_asked_for_is_dropped(draft: Draft) -> None:
    target, session = opened()
    session.request(DraftShape(8, 4))
    assert target.hear(draft) == []
    assert target.protocol.counters.dropped["late"] == 1


def test_a_draft_of_before_the_connection_broke_is_dropped() -> None:
    target, session = opened()
    session.request(DraftShape(8, 4))
    target.protocol.disconnected()
    assert target.hear(a_draft()) == []
    target.connect()
    assert target.hear(a_draft()) == []
    opening = only(Open, target.sent())
    assert target.hear(Opened(opening.ref, TAG, 4), a_draft()) == [SessionOpened(session)]
    assert session.request(DraftShape(8, 4)) == 2
    assert only(DraftArrived, target.hear(a_draft(2))).epoch == 2


def test_requests_that_are_never_answered_leave_a_bounded_memory() -> None:
    target, session = opened()
    for _ in range(1000):
        session.request(DraftShape(8, 4))
    target.protocol.frames()
    assert target.hear(*[a_draft(epoch) for epoch in range(1, 985)]) == []
    assert only(DraftArrived, target.hear(a_draft(990))).epoch == 990
