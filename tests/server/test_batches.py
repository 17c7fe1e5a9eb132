"""What is drafted together: everything that waits and fits, at once, and nothing that holds the urgent up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from starsd_edge.protocol.hub_side import AddRows, DropSession, OpenSession, QueueDraft
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape
from starsd_server.draft_queue import Absorb, Batch, DraftQueue, Work

NOW = 10.0


def put_requests(
    queue: DraftQueue, shapes: dict[int, DraftShape], rows: Mapping[int, int] = MappingProxyType({})
) -> None:
    """One for each session, under a root with so many rows before it."""
    for session, shape in shapes.items():
        queue.put(QueueDraft(session, 1, rows.get(session, 0), shape, received_at=0.01 * session))


def put_rows(queue: DraftQueue, session: int, count: int) -> None:
    queue.put(AddRows(NewRows(session, 0, [1] * count), "alice"))


def sessions_of(work: Work | None) -> list[int]:
    assert isinstance(work, Batch)
    return [answer.request.session for answer in work.answers]


def test_whatever_waits_goes_together_up_to_the_limit_the_longest_waiting_first() -> None:
    queue = DraftQueue(max_batch=3)
    put_requests(queue, dict.fromkeys([4, 1, 3, 5, 2], DraftShape(4, 4, 1)))
    assert sessions_of(queue.take(NOW)) == [1, 2, 3]
    assert sessions_of(queue.take(NOW)) == [4, 5]
    assert queue.take(NOW) is None


def test_one_that_waits_alone_is_not_kept_waiting_for_others() -> None:
    queue = DraftQueue()
    put_requests(queue, {1: DraftShape(4, 4, 1)})
    assert sessions_of(queue.take(NOW)) == [1]


def test_sessions_of_another_drafter_are_another_batch() -> None:
    queue = DraftQueue()
    for session, drafter in enumerate(("eagle", "ngram", "eagle", "ngram"), 1):
        queue.put(OpenSession(session, drafter, 0, 7))
        queue.take(NOW)
    put_requests(queue, dict.fromkeys([1, 2, 3, 4], DraftShape(4, 4, 1)))
    batches = [queue.take(NOW), queue.take(NOW)]
    assert [(batch.drafter, sessions_of(batch)) for batch in batches if isinstance(batch, Batch)] == [
        ("eagle", [1, 3]),
        ("ngram", [2, 4]),
    ]


def test_a_deep_tree_does_not_make_a_shallow_one_wait_for_twice_its_own_time() -> None:
    """A level costs 1 ms here and a pass 1 ms."""
    queue = DraftQueue()
    shapes = {1: DraftShape(2, 2, 1), 2: DraftShape(16, 16, 1), 3: DraftShape(5, 5, 1), 4: DraftShape(1, 1, 1)}
    put_requests(queue, shapes)
    assert sessions_of(queue.take(NOW)) == [1, 3, 4]
    assert sessions_of(queue.take(NOW)) == [2]


def test_a_shallow_tree_goes_along_with_a_deep_one_that_is_more_urgent() -> None:
    queue = DraftQueue()
    put_requests(queue, {1: DraftShape(16, 16, 1), 2: DraftShape(2, 2, 1)})
    assert sessions_of(queue.take(NOW)) == [1, 2]


def test_a_batch_takes_the_rest_of_one_prefill_and_not_of_many() -> None:
    queue = DraftQueue(rows_per_turn=64)
    rows = {1: 60, 2: 60, 3: 4, 4: 30}
    for session, count in rows.items():
        put_rows(queue, session, count)
    put_requests(queue, dict.fromkeys(rows, DraftShape(4, 4, 1)), rows)
    assert sessions_of(queue.take(NOW)) == [1, 3, 4]
    assert sessions_of(queue.take(NOW)) == [2]


def test_the_requests_of_a_departed_session_are_in_no_batch() -> None:
    queue = DraftQueue()
    put_requests(queue, dict.fromkeys([1, 2, 3], DraftShape(4, 4, 1)))
    queue.put(DropSession(2))
    queue.take(NOW)  # its end
    assert sessions_of(queue.take(NOW)) == [1, 3]
    assert queue.depth.dropped == 1


def feed_lengths(queue: DraftQueue, pass_s: float, row_s: float, steps: int) -> list[int | None]:
    """Rows of each turn, None for a pass: a prefill without an end beside a target that always asks."""
    said: list[int | None] = []
    for epoch in range(1, steps + 1):
        put_rows(queue, 9, 100)
        queue.put(QueueDraft(1, epoch, 0, DraftShape(4, 4, 1), NOW))
        work = queue.take(NOW)
        assert work is not None
        seconds = pass_s
        said.append(None)
        if isinstance(work, Absorb):
            said[-1] = len(work.rows.ids)
            seconds = row_s * len(work.rows.ids)
        queue.spent(work, seconds)
    return said


def test_a_prefill_turn_becomes_as_short_as_a_pass() -> None:
    said = feed_lengths(DraftQueue(), pass_s=0.024, row_s=0.001, steps=40)
    turns = [rows for rows in said if rows is not None]
    assert turns[0] == 64
    assert turns[1:] == [23] * (len(turns) - 1) or turns[1:] == [24] * (len(turns) - 1)
    assert len(turns) == 8


def test_a_turn_never_becomes_so_short_that_a_prefill_takes_for_ever() -> None:
    said = feed_lengths(DraftQueue(), pass_s=0.001, row_s=0.01, steps=40)
    assert [rows for rows in said if rows is not None][1:] == [16] * 7


def test_turns_that_cost_little_come_more_often() -> None:
    said = feed_lengths(DraftQueue(), pass_s=0.04, row_s=0.0001, steps=40)
    turns = [rows for rows in said if rows is not None]
    assert turns == [64] * len(turns)
    assert len(turns) >= 18
