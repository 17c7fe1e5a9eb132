"""`Q_in` without threads: order, superseding, prefill in turns, dropped work."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starsd_edge.protocol.hub_side import AddRows, Away, Back, DropSession, OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape
from starsd_server.draft_queue import Absorb, Batch, Begin, DraftQueue, DraftWork, End, Work

SHAPE = DraftShape(4, 4)
NOW = 10.0


def request(session: int, epoch: int = 1, base_len: int = 0) -> QueueDraft:
    """Under a root with so many rows before it."""
    return QueueDraft(session, epoch, base_len, SHAPE, received_at=float(epoch))


def feed(session: int, first_row: int, count: int) -> AddRows:
    return AddRows(NewRows(session, first_row, list(range(first_row, first_row + count))), "alice")


def drain(queue: DraftQueue) -> list[Work]:
    works = []
    while (work := queue.take(NOW)) is not None:
        works.append(work)
    assert not queue
    return works


def told(works: Sequence[Work]) -> list[tuple[str, int, int]]:
    """Each piece of work as (what, session, rows)."""
    lines = []
    for work in works:
        if isinstance(work, Batch):
            lines += [("draft", a.request.session, 0 if a.rows is None else len(a.rows.ids)) for a in work.answers]
        elif isinstance(work, Absorb):
            lines.append(("feed", work.rows.session, len(work.rows.ids)))
        elif isinstance(work, Begin):
            lines.append(("begin", work.opening.session, 0))
        else:
            lines.append(("end", work.session, 0))
    return lines


def alone(work: Work | None) -> DraftWork:
    """The one answer of a batch of one."""
    assert isinstance(work, Batch)
    (answer,) = work.answers
    return answer


def test_requests_are_served_in_order_of_arrival() -> None:
    queue = DraftQueue(max_batch=1)
    for session in (3, 1, 2):
        queue.put(request(session))
    assert told(drain(queue)) == [("draft", 3, 0), ("draft", 1, 0), ("draft", 2, 0)]


def test_a_higher_epoch_supersedes_the_queued_one_and_keeps_its_place() -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(request(1, epoch=1))
    queue.put(request(2, epoch=1))
    queue.put(feed(1, 0, 2))
    queue.put(request(1, epoch=2, base_len=2))
    assert (queue.depth.requests, queue.depth.superseded) == (2, 1)
    first = alone(queue.take(NOW))
    assert (first.request.session, first.request.epoch, first.request.base_len) == (1, 2, 2)
    assert told(drain(queue)) == [("draft", 2, 0)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_lower_or_equal_epoch_never_replaces_the_queued_one(epoch: int) -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(request(1, epoch=2))
    queue.put(request(1, epoch=epoch))
    works = drain(queue)
    assert [alone(work).request.epoch for work in works] == [2]


def test_rows_come_with_the_request_that_follows_them_as_one_piece() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=8)
    queue.put(feed(1, 0, 3))
    queue.put(feed(1, 3, 2))
    queue.put(request(1, base_len=5))
    work = alone(queue.take(NOW))
    assert work.rows is not None
    assert (work.rows.first_row, list(work.rows.ids)) == (0, [0, 1, 2, 3, 4])


def rows_and_root(work: Work | None) -> tuple[list[int], int]:
    answer = alone(work)
    return ([] if answer.rows is None else list(answer.rows.ids)), answer.request.base_len


def test_a_request_sees_the_rows_before_its_root_and_no_others() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=8)
    queue.put(feed(1, 0, 3))
    queue.put(request(1, epoch=1, base_len=3))
    queue.put(feed(1, 3, 2))
    assert rows_and_root(queue.take(NOW)) == ([0, 1, 2], 3)
    queue.put(feed(1, 5, 1))
    queue.put(request(1, epoch=2, base_len=6))
    queue.put(feed(1, 6, 2))
    queue.put(request(1, epoch=3, base_len=8))  # in place of the one before, with what came between
    queue.put(feed(1, 8, 1))
    assert rows_and_root(queue.take(NOW)) == ([3, 4, 5, 6, 7], 8)
    assert told(drain(queue)) == [("feed", 1, 1)]


def test_what_came_after_a_request_goes_to_the_drafter_after_it_also_in_a_long_prefill() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=10, drafts_per_feed=1)
    queue.put(feed(1, 0, 25))
    queue.put(request(1, base_len=25))
    queue.put(feed(1, 25, 300))
    queue.put(request(2))
    assert told(drain(queue))[:4] == [("draft", 2, 0), ("feed", 1, 10), ("feed", 1, 10), ("draft", 1, 5)]


def test_rows_that_only_come_after_a_request_stay_until_it_is_served() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=10)
    queue.put(request(1, base_len=0))
    queue.put(feed(1, 0, 4))
    assert told(drain(queue)) == [("draft", 1, 0), ("feed", 1, 4)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.booleans(), st.booleans()), max_size=40))
def test_whatever_comes_and_when_a_drafter_stands_at_the_root_that_is_asked_for(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    queue = DraftQueue(max_batch=2, rows_per_turn=10)
    held, sent = dict.fromkeys((1, 2, 3), 0), dict.fromkeys((1, 2, 3), 0)

    def work_off(work: Work | None) -> None:
        batch = [(a.request, a.rows) for a in work.answers] if isinstance(work, Batch) else []
        for rows in [work.rows] if isinstance(work, Absorb) else [rows for _, rows in batch if rows is not None]:
            assert rows.first_row == held[rows.session]
            held[rows.session] += len(rows.ids)
        assert [held[asked.session] for asked, _ in batch] == [asked.base_len for asked, _ in batch]

    for epoch, (session, count, asks, works) in enumerate(steps, 1):
        queue.put(feed(session, sent[session], count))
        sent[session] += count
        if asks:
            queue.put(request(session, epoch, sent[session]))
        if works:
            work_off(queue.take(NOW))
    for work in drain(queue):
        work_off(work)
    assert held == sent


def test_a_long_prefill_goes_in_turns_and_other_sessions_are_served_between() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=10, drafts_per_feed=2)
    queue.put(feed(9, 0, 35))
    queue.put(request(9, base_len=35))
    for session in range(1, 5):
        queue.put(request(session))
    assert told(drain(queue)) == [
        ("draft", 1, 0),
        ("draft", 2, 0),
        ("feed", 9, 10),
        ("draft", 3, 0),
        ("draft", 4, 0),
        ("feed", 9, 10),
        ("feed", 9, 10),
        ("draft", 9, 5),
    ]


def test_prefills_of_several_sessions_take_turns() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=10)
    queue.put(feed(1, 0, 25))
    queue.put(feed(2, 0, 12))
    assert told(drain(queue)) == [("feed", 1, 10), ("feed", 2, 10), ("feed", 1, 10), ("feed", 2, 2), ("feed", 1, 5)]


def test_rounds_do_not_starve_a_prefill() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=10, drafts_per_feed=3)
    queue.put(feed(9, 0, 30))
    served = []
    for epoch in range(1, 13):  # a request of a fast session is there whenever the thread looks
        queue.put(request(1, epoch))
        work = queue.take(NOW)
        assert work is not None
        served.append(work)
    assert sum(isinstance(work, Absorb) for work in served) == 3


def test_features_are_split_and_joined_with_their_rows() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=4)
    features = np.arange(12, dtype=np.float16).reshape(6, 2)
    queue.put(AddRows(NewRows(1, 0, [1, 2, 3], features[:3]), "alice"))
    queue.put(AddRows(NewRows(1, 3, [4, 5, 6], features[3:]), "alice"))
    works = drain(queue)
    pieces = [work.rows for work in works if isinstance(work, Absorb)]
    assert [(piece.first_row, list(piece.ids)) for piece in pieces] == [(0, [1, 2, 3, 4]), (4, [5, 6])]
    joined = np.concatenate([piece.features for piece in pieces if piece.features is not None])
    assert np.array_equal(joined, features)


def with_features(session: int, first_row: int, count: int, owner: str) -> AddRows:
    """Rows of 16 bytes of features each."""
    features = np.ones((count, 8), dtype=np.float16)
    return AddRows(NewRows(session, first_row, [1] * count, features), owner)


def test_features_that_wait_are_counted_for_their_key_until_they_are_taken_or_dropped() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=4)
    queue.put(with_features(1, 0, 10, "alice"))
    queue.put(with_features(1, 10, 1, "alice"))
    queue.put(with_features(2, 0, 2, "alice"))
    queue.put(with_features(3, 0, 5, "bob"))
    queue.put(feed(4, 0, 100))
    assert [queue.waiting_bytes(owner) for owner in ("alice", "bob", "carol")] == [13 * 16, 5 * 16, 0]
    work = queue.take(NOW)
    assert isinstance(work, Absorb)
    assert queue.waiting_bytes("alice") == 9 * 16
    queue.put(request(2, base_len=2))
    assert alone(queue.take(NOW)).request.session == 2
    assert queue.waiting_bytes("alice") == 7 * 16
    queue.put(DropSession(1))
    assert [queue.waiting_bytes(owner) for owner in ("alice", "bob")] == [0, 5 * 16]
    drain(queue)
    assert queue.waiting_bytes("bob") == 0


def test_what_waits_holds_no_memory_of_what_was_taken() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=60)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for session in range(20):
        queue.put(AddRows(NewRows(session, 0, [1] * 64, np.ones((64, 4096), dtype=np.float16)), "alice"))
    assert sum(isinstance(queue.take(NOW), Absorb) for _ in range(20)) == 20
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert queue.waiting_bytes("alice") == 20 * 4 * 8192
    assert held == pytest.approx(20 * 4 * 8192, rel=0.1)


def test_a_dropped_session_leaves_nothing_but_its_end() -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(feed(1, 0, 500))
    queue.put(request(1))
    queue.put(request(2))
    queue.put(DropSession(1))
    assert (queue.depth.rows, queue.depth.requests, queue.depth.dropped) == (0, 1, 1)
    assert told(drain(queue)) == [("end", 1, 0), ("draft", 2, 0)]


def test_a_session_dropped_before_it_began_never_reaches_the_drafter() -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(OpenSession(1, "ngram", 0, 7))
    queue.put(request(1))
    queue.put(DropSession(1))
    assert drain(queue) == []


def test_room_is_made_before_it_is_taken() -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(OpenSession(2, "ngram", 0, 7))
    queue.put(DropSession(1))
    assert told(drain(queue)) == [("end", 1, 0), ("begin", 2, 0)]


def test_no_rows_are_no_work() -> None:
    queue = DraftQueue(max_batch=1)
    queue.put(feed(1, 0, 0))
    assert not queue
    assert queue.take(NOW) is None


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 4), st.integers(1, 25)),
        st.tuples(st.just("request"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.integers(1, 4))
def test_every_row_arrives_once_in_order_and_before_its_request(
    actions: list[tuple[str, int, int]], max_batch: int
) -> None:
    queue = DraftQueue(max_batch=max_batch, rows_per_turn=10, drafts_per_feed=2)
    sent = dict.fromkeys(range(1, 5), 0)
    got: dict[int, list[int]] = {session: [] for session in sent}
    epochs = dict.fromkeys(sent, 0)
    answered = dict.fromkeys(sent, 0)

    def take() -> bool:
        work = queue.take(NOW)
        parts = work.answers if isinstance(work, Batch) else [work]
        for part in parts:
            take_in(part)
        return work is not None

    def take_in(part: object) -> None:
        rows = part.rows if isinstance(part, Absorb | DraftWork) else None
        if rows is not None:
            assert len(rows.ids) <= 10
            got[rows.session].extend(rows.ids)
        if isinstance(part, DraftWork):
            request = part.request
            answered[request.session] = request.epoch
            assert got[request.session] == list(range(len(got[request.session])))
            assert len(got[request.session]) >= request.base_len

    for what, session, count in actions:
        if what == "feed":
            queue.put(feed(session, sent[session], count))
            sent[session] += count
        elif what == "request":
            epochs[session] += 1
            queue.put(request(session, epochs[session], sent[session]))
        else:
            take()
    while take():
        pass
    assert {session: len(rows) for session, rows in got.items()} == sent
    assert answered == epochs
    assert not isinstance(queue.take(NOW), End)


def test_the_request_of_a_session_that_is_away_is_gone_and_its_rows_come_last() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=64)
    queue.put(feed(1, 0, 70))
    queue.put(request(1))
    queue.put(Away(1))
    queue.put(feed(2, 0, 70))
    queue.put(request(3))
    assert (queue.depth.requests, queue.depth.dropped) == (1, 1)
    assert told(drain(queue)) == [
        ("draft", 3, 0),
        ("feed", 2, 64),
        ("feed", 2, 6),
        ("feed", 1, 64),
        ("feed", 1, 6),
    ]


def test_a_session_that_is_back_is_as_any_other() -> None:
    queue = DraftQueue(max_batch=1, rows_per_turn=64)
    queue.put(Away(1))
    queue.put(Back(1))
    queue.put(feed(1, 0, 2))
    queue.put(request(1, epoch=2, base_len=2))
    assert told(drain(queue)) == [("draft", 1, 2)]
    assert queue.depth.dropped == 0
