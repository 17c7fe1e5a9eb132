"""Results on their way from the drafting thread to the event loop."""

from __future__ import annotations

import threading

from starsd_server.drafter_pool import Done, Warm
from starsd_server.worker import Handover


def died() -> None:
    raise AssertionError("nothing went wrong")


def results(count: int) -> list[Done]:
    return [Done((Warm(str(number)),)) for number in range(count)]


def test_results_come_in_order_on_another_thread_and_all_of_them_before_it_ends() -> None:
    seen: list[tuple[Done, str]] = []
    handover = Handover(lambda done: seen.append((done, threading.current_thread().name)), died)
    handover.start()
    laid_down = results(50)
    for done in laid_down:
        handover.put(done)
    handover.stop()
    assert [done for done, _ in seen] == laid_down
    assert {name for _, name in seen} == {"handover"}


def test_who_lays_down_a_result_does_not_wait_for_who_takes_it() -> None:
    may_go_on = threading.Event()
    seen: list[Done] = []

    def slowly(done: Done) -> None:
        may_go_on.wait(10)
        seen.append(done)

    handover = Handover(slowly, died)
    handover.start()
    for done in results(3):
        handover.put(done)
    assert seen == []
    may_go_on.set()
    handover.stop()
    assert seen == results(3)


def test_a_fault_is_told_since_nobody_would_be_answered_any_more() -> None:
    told = threading.Event()

    def fail(done: Done) -> None:
        raise ValueError("a fault")

    handover = Handover(fail, told.set)
    handover.start()
    for done in results(2):
        handover.put(done)
    assert told.wait(10)
    handover.stop()
