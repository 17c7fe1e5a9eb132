"""The books of the drafting thread leave nothing out and blame nobody wrongly."""

from __future__ import annotations

import pytest

from starsd_edge.telemetry.hub_facts import TimeUse
from starsd_server.worker import UseMeter


def test_waiting_for_work_is_idle_until_it_comes_and_lag_after() -> None:
    meter = UseMeter(now=100.0)
    meter.begin_work(work_since=103.0, now=103.5)
    meter.end_work(now=105.5)
    assert meter.read(105.5) == TimeUse(busy_s=2.0, idle_s=3.0, lag_s=0.5)


def test_work_that_waited_all_along_is_no_excuse_to_be_idle() -> None:
    meter = UseMeter(now=0.0)
    meter.begin_work(work_since=0.0, now=0.0)
    meter.end_work(now=1.0)
    meter.begin_work(work_since=0.5, now=1.25)
    meter.end_work(now=2.0)
    assert meter.read(2.0) == TimeUse(busy_s=1.75, idle_s=0.0, lag_s=0.25)


def test_a_draft_in_progress_counts_as_busy_and_a_wait_in_progress_as_idle() -> None:
    meter = UseMeter(now=0.0)
    assert meter.read(2.0) == TimeUse(idle_s=2.0)
    meter.begin_work(work_since=2.0, now=2.0)
    assert meter.read(5.0) == TimeUse(busy_s=3.0, idle_s=2.0)


@pytest.mark.parametrize("work_since", [-5.0, 0.0, 3.0, 99.0])
def test_nothing_is_left_out_whatever_the_queue_says(work_since: float) -> None:
    meter = UseMeter(now=0.0)
    meter.begin_work(work_since, now=4.0)
    meter.end_work(now=6.0)
    assert meter.read(7.0).total_s == 7.0
