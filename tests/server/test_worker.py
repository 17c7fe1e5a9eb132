"""The drafting thread: work-conserving, honest about its time, and hard to take down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from starsd_edge.protocol.hub_side import AddRows, DropSession, OpenSession, QueueDraft
from starsd_edge.protocol.messages import Hello
from starsd_edge.protocol.rows import NewRows
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.hub_facts import TimeUse
from starsd_server.draft_queue import DraftQueue, WorkQueue
from starsd_server.drafter_pool import Broken, Done, Drafted, DrafterPool, DraftFailed, Outcome, Warm
from starsd_server.drafters.contract import DraftOutcome, Failures, SessionRefusedError
from starsd_server.worker import DraftWorker

SHAPE = DraftShape(4, 4)


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeDrafter:
    """Drafts the number of rows it has seen; takes `cost` seconds of the fake clock for it."""

    clock: FakeClock
    cost: float = 0.25
    kind: str = "fake"
    fingerprint: str = "fake"
    feature_codecs: tuple[str, ...] = ()
    rows: dict[int, int] = field(default_factory=dict)
    on_draft: Callable[[int], None] = lambda session: None
    warm_up_error: Exception | None = None

    def refuses(self, hello: Hello) -> str | None:
        return None

    def warm_up(self) -> None:
        if self.warm_up_error:
            raise self.warm_up_error

    def open(self, session: int, first_row: int, t_first: int) -> None:
        if t_first == 13:
            raise SessionRefusedError("no room: try again later")
        self.rows[session] = 0

    def close(self, session: int) -> int:
        return self.rows.pop(session, 0)

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        for rows in batch:
            self.rows[rows.session] += len(rows.ids)
        return {}

    def base_len(self, session: int) -> int:
        return self.rows[session]

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        self.clock.now += self.cost
        for session in batch:
            self.on_draft(session)
        return [DraftTree.chain([self.rows[session]]) for session in batch]


@dataclass
class Bench:
    clock: FakeClock
    drafter: FakeDrafter
    pool: DrafterPool
    queue: WorkQueue
    worker: DraftWorker
    outcomes: list[Outcome]
    died: list[bool]

    def open(self, session: int, t_first: int = 1) -> None:
        self.queue.put(OpenSession(session, "fake", 0, t_first))

    def request(self, session: int, epoch: int = 1, base_len: int = 0) -> None:
        self.queue.put(QueueDraft(session, epoch, base_len, SHAPE, self.clock.now))

    def work(self, pieces: int) -> list[Outcome]:
        """Do this many pieces of work, all of which must be there."""
        del self.outcomes[:]
        for _ in range(pieces):
            assert self.worker.work_once()
        return list(self.outcomes)


@pytest.fixture
def bench() -> Bench:
    return bench_of(max_batch=1)


def bench_of(max_batch: int) -> Bench:
    clock = FakeClock()
    drafter = FakeDrafter(clock)
    pool = DrafterPool([drafter], clock)
    queue = WorkQueue(DraftQueue(max_batch=max_batch), clock)
    outcomes: list[Outcome] = []
    died: list[bool] = []
    worker = DraftWorker(pool, queue, lambda done: outcomes.extend(done.outcomes), lambda: died.append(True), clock)
    return Bench(clock, drafter, pool, queue, worker, outcomes, died)


def test_a_request_is_answered_with_its_own_epoch_base_and_durations(bench: Bench) -> None:
    bench.open(1)
    bench.queue.put(AddRows(NewRows(1, 0, [5, 6]), "alice"))
    bench.request(1, epoch=7, base_len=2)
    bench.clock.now += 0.5
    assert bench.work(2) == [Drafted(1, 7, 2, DraftTree.chain([2]), queue_us=500_000, service_us=250_000)]


def test_rows_that_come_while_a_request_waits_are_not_in_its_tree(bench: Bench) -> None:
    bench.open(1)
    bench.queue.put(AddRows(NewRows(1, 0, [5, 6]), "alice"))
    bench.request(1, epoch=7, base_len=2)
    bench.queue.put(AddRows(NewRows(1, 2, [7, 8, 9]), "alice"))
    drafted = bench.work(2)
    assert [(each.base_len, each.tree) for each in drafted if isinstance(each, Drafted)] == [(2, DraftTree.chain([2]))]
    bench.request(1, epoch=8, base_len=5)
    assert [each.tree for each in bench.work(2) if isinstance(each, Drafted)] == [DraftTree.chain([5])]


def test_no_tree_is_handed_out_for_a_root_that_the_drafter_does_not_stand_at() -> None:
    bench = bench_of(max_batch=16)
    for session in (1, 2):
        bench.open(session)
        bench.request(session, base_len=session - 1)  # of the second no row has come
    outcomes = bench.work(3)
    assert [(type(outcome), outcome.session) for outcome in outcomes if not isinstance(outcome, Warm)] == [
        (DraftFailed, 2),
        (Drafted, 1),
    ]
    assert sorted(bench.drafter.rows) == [1]


def test_time_is_booked_as_it_was_spent(bench: Bench) -> None:
    bench.open(1)
    bench.work(1)
    bench.clock.now += 3.0  # nothing to do
    bench.request(1, epoch=1)
    bench.clock.now += 0.125  # waking up
    bench.work(1)
    bench.request(1, epoch=2)
    bench.clock.now += 0.0625  # handing back, while the next one waits
    bench.work(1)
    assert bench.worker.time_use() == TimeUse(busy_s=0.5, idle_s=3.0, lag_s=0.1875)


def test_handing_back_is_lag_while_work_waits_and_idle_else(bench: Bench) -> None:
    def hand_back(done: Done) -> None:
        bench.clock.now += 0.125

    worker = DraftWorker(bench.pool, bench.queue, hand_back, lambda: None, bench.clock)
    for session in (1, 2):
        bench.open(session)
        bench.request(session)
    for _ in range(4):
        assert worker.work_once()
    assert worker.time_use() == TimeUse(busy_s=0.5, idle_s=0.125, lag_s=0.375)


def test_the_wait_of_the_oldest_work_counts_whatever_comes_after(bench: Bench) -> None:
    bench.open(1)
    bench.clock.now += 0.5
    bench.open(2)
    bench.clock.now += 0.5
    bench.work(1)
    assert bench.worker.time_use() == TimeUse(lag_s=1.0)


def test_a_drafter_that_raises_for_one_session_costs_that_session_only(bench: Bench) -> None:
    def fail_for_two(session: int) -> None:
        if session == 2:
            raise ValueError("the tensor is the wrong way up")

    bench.drafter.on_draft = fail_for_two
    for session in (1, 2, 3):
        bench.open(session)
        bench.request(session)
    outcomes = bench.work(6)
    assert [type(outcome) for outcome in outcomes] == [Drafted, DraftFailed, Drafted]
    failed = outcomes[1]
    assert isinstance(failed, DraftFailed)
    assert (failed.session, failed.epoch) == (2, 1)
    assert "ValueError" in failed.message
    assert "tensor" not in failed.message  # details are for the hub's log
    assert sorted(bench.drafter.rows) == [1, 3]
    health = bench.pool.health["fake"]
    assert (health.failures, health.sessions, health.drafts, health.failing) == (1, 2, 2, False)


def test_a_batch_is_drafted_in_one_call_and_its_time_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(max_batch=16)
    calls: list[list[int]] = []
    draft = bench.drafter.draft

    def counted(batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        calls.append(list(batch))
        return draft(batch, shapes)

    monkeypatch.setattr(bench.drafter, "draft", counted)
    for session in (1, 2, 3):
        bench.open(session)
    bench.work(3)
    for session in (1, 2, 3):
        bench.queue.put(AddRows(NewRows(session, 0, [5] * session), "alice"))
        bench.request(session, epoch=session, base_len=session)
        bench.clock.now += 0.125
    assert bench.work(1) == [
        Drafted(1, 1, 1, DraftTree.chain([1]), queue_us=375_000, service_us=250_000),
        Drafted(2, 2, 2, DraftTree.chain([2]), queue_us=250_000, service_us=250_000),
        Drafted(3, 3, 3, DraftTree.chain([3]), queue_us=125_000, service_us=250_000),
    ]
    assert calls == [[1, 2, 3]]
    health = bench.pool.health["fake"]
    assert (health.passes, health.drafts, health.rows) == (1, 3, 6)


def test_one_of_a_batch_that_the_drafter_raises_for_costs_the_others_nothing() -> None:
    def fail_for_two(session: int) -> None:
        if session == 2:
            raise ValueError

    bench = bench_of(max_batch=16)
    bench.drafter.on_draft = fail_for_two
    for session in (1, 2, 3):
        bench.open(session)
    bench.work(3)
    for session in (1, 2, 3):
        bench.queue.put(AddRows(NewRows(session, 0, [5] * session), "alice"))
        bench.request(session, base_len=session)
    outcomes = bench.work(1)
    assert {outcome.session: type(outcome) for outcome in outcomes if not isinstance(outcome, Warm)} == {
        1: Drafted,
        2: DraftFailed,
        3: Drafted,
    }
    trees = {outcome.session: outcome.tree for outcome in outcomes if isinstance(outcome, Drafted)}
    assert trees == {1: DraftTree.chain([1]), 3: DraftTree.chain([3])}  # rows were taken in once
    assert sorted(bench.drafter.rows) == [1, 3]
    assert bench.pool.health["fake"].failures == 1


def test_rows_that_one_of_a_batch_cannot_take_cost_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(max_batch=16)
    extend = bench.drafter.extend

    def refuse(batch: Sequence[NewRows]) -> Failures:
        extend([rows for rows in batch if 13 not in rows.ids])
        return {rows.session: SessionRefusedError("no such token") for rows in batch if 13 in rows.ids}

    monkeypatch.setattr(bench.drafter, "extend", refuse)
    for session in (1, 2, 3):
        bench.open(session)
    bench.work(3)
    for session in (1, 2, 3):
        bench.queue.put(AddRows(NewRows(session, 0, [13 if session == 2 else 5]), "alice"))
        bench.request(session, epoch=4, base_len=1)
    outcomes = bench.work(1)
    assert DraftFailed(2, 4, "no such token") in outcomes
    drafted = [outcome for outcome in outcomes if isinstance(outcome, Drafted)]
    assert [(outcome.session, outcome.tree) for outcome in drafted] == [
        (1, DraftTree.chain([1])),
        (3, DraftTree.chain([1])),
    ]


def test_a_session_that_the_drafter_names_is_lost_and_the_pass_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bench_of(max_batch=16)
    draft = bench.drafter.draft
    calls: list[list[int]] = []

    def name_two(batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftOutcome]:
        calls.append(list(batch))
        trees = draft(batch, shapes)
        return [ValueError() if session == 2 else tree for session, tree in zip(batch, trees, strict=True)]

    monkeypatch.setattr(bench.drafter, "draft", name_two)
    for session in (1, 2, 3):
        bench.open(session)
    bench.work(3)
    for session in (1, 2, 3):
        bench.request(session, epoch=5)
    outcomes = bench.work(1)
    assert calls == [[1, 2, 3]]
    assert {type(outcome) for outcome in outcomes if getattr(outcome, "session", 0) == 2} == {DraftFailed}
    assert [outcome.session for outcome in outcomes if isinstance(outcome, Drafted)] == [1, 3]
    assert sorted(bench.drafter.rows) == [1, 3]
    health = bench.pool.health["fake"]
    assert (health.passes, health.drafts, health.failures) == (1, 2, 1)


def test_where_taking_in_rows_raises_all_whose_rows_they_were_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(max_batch=16)

    def fail(batch: Sequence[NewRows]) -> Failures:
        raise MemoryError

    monkeypatch.setattr(bench.drafter, "extend", fail)
    for session in (1, 2, 3):
        bench.open(session)
    bench.work(3)
    for session in (1, 2):
        bench.queue.put(AddRows(NewRows(session, 0, [5]), "alice"))
        bench.request(session, base_len=1)
    bench.request(3)
    outcomes = bench.work(1)
    assert [outcome.session for outcome in outcomes if isinstance(outcome, DraftFailed)] == [1, 2]
    assert [outcome.session for outcome in outcomes if isinstance(outcome, Drafted)] == [3]


def test_what_still_comes_for_a_failed_session_is_passed_over(bench: Bench) -> None:
    def fail(session: int) -> None:
        raise ZeroDivisionError

    bench.drafter.on_draft = fail
    bench.open(1)
    bench.request(1)
    assert len(bench.work(2)) == 1
    bench.queue.put(AddRows(NewRows(1, 0, [5]), "alice"))
    bench.request(1, epoch=2)
    bench.queue.put(DropSession(1))
    assert bench.work(1) == []  # the end of the session; its queued work went with it
    assert bench.pool.health["fake"].sessions == 0


def test_a_drafter_that_keeps_raising_is_reported_until_it_works_again(bench: Bench) -> None:
    def fail(session: int) -> None:
        raise MemoryError

    bench.drafter.on_draft = fail
    for session in (1, 2, 3):
        bench.open(session)
        bench.request(session)
    bench.work(6)
    health = bench.pool.health["fake"]
    assert health.failing
    assert (health.failures, health.last_error) == (3, "MemoryError")
    bench.drafter.on_draft = lambda session: None
    bench.open(4)
    bench.request(4)
    bench.work(2)
    assert not health.failing


def test_a_refusal_tells_the_target_why_and_is_no_failure(bench: Bench) -> None:
    bench.open(1, t_first=13)
    assert bench.work(1) == [DraftFailed(1, 0, "no room: try again later")]
    health = bench.pool.health["fake"]
    assert (health.refusals, health.failures, health.sessions) == (1, 0, 0)


def test_a_drafter_that_cannot_be_warmed_up_is_failing_and_never_warm(bench: Bench) -> None:
    bench.drafter.warm_up_error = OSError("no such device")
    why = "it could not be warmed up (OSError)"
    assert bench.pool.warm_up("fake") == Broken("fake", why)
    health = bench.pool.health["fake"]
    assert (health.warm, health.failing, health.last_error, health.broken) == (False, True, "OSError", why)


def test_the_thread_warms_up_works_and_ends_when_asked(bench: Bench) -> None:
    drafted = threading.Event()
    bench.drafter.on_draft = lambda session: drafted.set()
    bench.worker.start()
    bench.open(1)
    bench.request(1)
    assert drafted.wait(10)
    assert bench.worker.stop(10)
    assert not bench.worker.is_alive
    assert [type(outcome) for outcome in bench.outcomes] == [Warm, Drafted]
    assert bench.died == []


def test_the_queue_is_never_left_waiting(bench: Bench) -> None:
    """Requests that come while a draft is being made are taken without another wait."""
    again = threading.Event()

    def ask_more(session: int) -> None:
        if session < 20:
            bench.open(session + 1)
            bench.request(session + 1)
        else:
            again.set()

    bench.drafter.on_draft = ask_more
    bench.worker.start()
    bench.open(1)
    bench.request(1)
    assert again.wait(10)
    assert bench.worker.stop(10)
    assert [outcome.session for outcome in bench.outcomes if isinstance(outcome, Drafted)] == list(range(1, 21))


def test_a_thread_that_dies_of_its_own_says_so(bench: Bench) -> None:
    def deliver(done: Done) -> None:
        raise RuntimeError("a fault of ours")

    died = threading.Event()
    worker = DraftWorker(bench.pool, bench.queue, deliver, died.set, bench.clock)
    worker.start()
    assert died.wait(10)
