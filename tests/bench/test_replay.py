"""The timing backend: modelled times, the replay engine, modelled paths, and a real star of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from starsd_edge.bench.delayed_paths import DelayedPaths
from starsd_edge.bench.device_times import Line, LinkTimes, ModelPassTimes, Pacer
from starsd_edge.bench.replay_engine import ReplayDevice, ReplayEngine
from starsd_edge.bench.star_runs import HubPlan, Point, TargetLog
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.cli.bench.star_targets import ReplayCrowd, ReplaySetup, WatchedChannel
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.hub_process import read_status
from starsd_edge.protocol.target_side import DraftArrived, TargetSession
from starsd_edge.runtime.engine import causal_mask
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.hub_facts import HubFacts
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.answers import Request
from starsd_jetson.decoder import decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.hub_drafting import Asked, DraftChannel
from tests.support.decoding import PROMPT, letters
from tests.support.hub_client import running_hub
from tests.support.letter_bundle import write_bundle
from tests.support.traces import letter_source, letter_trace, letter_traces


class FakeTime:
    """A clock that sleeping moves on, each time by `late` more than was asked for."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 100.0
        self.late = late
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def test_a_pass_grows_by_a_share_with_its_rows() -> None:
    times = ModelPassTimes(0.035, 0.03)
    assert times.mean_s(1) == 0.035
    assert times.mean_s(11) == pytest.approx(0.035 * 1.3)
    jittery = ModelPassTimes(1.0, 0.0, 0.2)
    assert (jittery.draw_s(1, 0.0), jittery.draw_s(1, 0.5), jittery.draw_s(1, 1.0)) == pytest.approx((0.8, 1.0, 1.2))


@pytest.mark.parametrize("numbers", [(-1.0, 0.0, 0.0), (float("nan"), 0, 0), (1.0, -0.1, 0.0), (1.0, 0.0, 1.0)])
def test_times_that_cannot_be_are_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError):
        ModelPassTimes(*numbers)


@pytest.mark.parametrize("numbers", [(-1.0, None), (float("inf"), None), (0.0, 0.0), (0.0, float("nan"))])
def test_links_that_cannot_be_are_refused(numbers: tuple[float, float | None]) -> None:
    with pytest.raises(UsageError):
        LinkTimes(*numbers)


def test_sleeping_too_long_does_not_add_up() -> None:
    time = FakeTime(late=0.004)
    pacer = Pacer(time.clock, time.sleep)
    for _ in range(100):
        pacer.end(pacer.begin(), 0.03)
    assert time.now == pytest.approx(100 + 3 + 0.004)


def test_work_within_a_pass_is_part_of_it() -> None:
    time = FakeTime()
    pacer = Pacer(time.clock, time.sleep)
    began = pacer.begin()
    time.now += 0.02
    pacer.end(began, 0.03)
    assert time.slept == pytest.approx([0.01])
    began = pacer.begin()
    time.now += 0.05  # longer than the pass: the next one is shorter by that much
    pacer.end(began, 0.03)
    pacer.end(pacer.begin(), 0.03)
    assert time.slept == pytest.approx([0.01, 0.01])


def test_a_line_delays_and_bytes_wait_for_those_before_them() -> None:
    line = Line(LinkTimes(0.02, bits_per_s=8000.0))
    assert line.arrival_s(1.0, 100) == pytest.approx(1.0 + 0.1 + 0.01)
    assert line.arrival_s(1.05, 50) == pytest.approx(1.1 + 0.05 + 0.01)
    assert line.arrival_s(5.0, 0) == pytest.approx(5.01)
    assert Line(LinkTimes(0.02)).arrival_s(1.0, 10**9) == pytest.approx(1.01)


def replay(source: DraftSource, max_tokens: int = 40) -> tuple[tuple[int, ...], tuple[int, ...]]:
    trace = letter_trace()
    engine = ReplayEngine([trace], letter_source())
    request = Request(
        trace.prompt, SamplingParams(), max_tokens, context=128, shape=DraftShape(6, 4, 2), ignore_eos=True
    )
    ticks = itertools.count()
    return decode(engine, letters(), request, source, clock=lambda: float(next(ticks))).token_ids, tuple(trace.answer)


@pytest.mark.parametrize("source", [NoDrafts, NgramDrafts])
def test_the_recorded_answer_is_given_whatever_is_drafted(source: type[DraftSource]) -> None:
    found, recorded = replay(source())
    assert found == recorded


def test_features_are_the_recorded_ones_along_the_text() -> None:
    trace = letter_trace()
    engine = ReplayEngine([trace], letter_source())
    seq = engine.open(64)
    step = engine.forward(seq, trace.ids[:9], np.arange(9), causal_mask(9), [8])
    assert np.array_equal(step.features, trace.features[:9])
    assert int(step.logits[0].argmax()) == trace.ids[9]


def test_a_node_beside_the_text_is_not_followed_by_the_recorded_token() -> None:
    trace = letter_trace()
    engine = ReplayEngine([trace], letter_source())
    seq = engine.open(64)
    engine.forward(seq, trace.ids[:9], np.arange(9), causal_mask(9), [8])
    engine.commit(seq, range(9))
    wrong = (trace.ids[10] + 1) % 24
    tokens = np.array([trace.ids[9], wrong, trace.ids[11], trace.ids[10]], dtype=np.int64)
    mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]], dtype=np.bool_)
    chosen = engine.forward(seq, tokens, np.array([9, 10, 11, 10]), mask).logits.argmax(axis=1)
    assert [chosen[0], chosen[3]] == [trace.ids[10], trace.ids[11]]
    on_text = engine.forward(seq, trace.ids[9:13], np.arange(9, 13), causal_mask(4)).logits.argmax(axis=1)
    assert on_text.tolist() == trace.ids[10:14].tolist()
    assert chosen[2] != trace.ids[12] or chosen[1] != trace.ids[11]


def test_a_pass_takes_the_time_of_the_device() -> None:
    time, trace = FakeTime(), letter_trace()
    device = ReplayDevice(ModelPassTimes(0.035, 0.03), Pacer(time.clock, time.sleep), lambda: 0.5)
    engine = ReplayEngine([trace], letter_source(), device)
    seq = engine.open(64)
    engine.forward(seq, trace.ids[:1], np.arange(1), causal_mask(1))
    engine.forward(seq, trace.ids[:11], np.arange(11), causal_mask(11))
    assert time.now - 100 == pytest.approx(0.035 + 0.035 * 1.3)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    engine = ReplayEngine([letter_trace()], letter_source())
    with pytest.raises(EngineError):
        engine.forward(engine.open(64), np.array([24]), np.arange(1), causal_mask(1))


def test_bytes_pass_a_modelled_path_whole_and_in_order_and_its_end_is_told() -> None:
    sent = bytes(range(256)) * 2000
    with socket.create_server(("127.0.0.1", 0)) as hub, DelayedPaths() as paths:
        port = paths.open(hub.getsockname()[1], LinkTimes(0.002, 1e9))
        with socket.create_connection(("127.0.0.1", port)) as target:
            accepted, _ = hub.accept()
            with accepted:
                target.sendall(sent)
                target.shutdown(socket.SHUT_WR)
                found = b"".join(iter(lambda: accepted.recv(65536), b""))
                assert found == sent


def test_what_arrives_at_one_moment_comes_out_in_order_and_the_end_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end takes no time on a line, so it arrives with the last bytes; a loop may run equal timers in any order."""
    plainly, latest = asyncio.SelectorEventLoop.call_at, [0.0]

    def newest_first(loop: asyncio.SelectorEventLoop, when: float, *call: Any, **how: Any) -> asyncio.TimerHandle:
        sooner_s = 1e-3 if when == latest[0] else 0.0
        latest[0] = when
        return plainly(loop, when - sooner_s, *call, **how)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "call_at", newest_first)
    sent = bytes(range(256)) * 2000
    with socket.create_server(("127.0.0.1", 0)) as hub, DelayedPaths() as paths:
        port = paths.open(hub.getsockname()[1], LinkTimes(0.002, 1e8))
        with socket.create_connection(("127.0.0.1", port)) as target:
            accepted, _ = hub.accept()
            with accepted:
                target.sendall(sent)
                target.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda: accepted.recv(65536), b"")) == sent


def test_a_path_to_where_nobody_listens_ends_its_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    with DelayedPaths() as paths, socket.create_connection(("127.0.0.1", paths.open(closed, LinkTimes(0.0)))) as target:
        target.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert target.recv(1) == b""


@pytest.fixture
def setup(tmp_path: Path) -> ReplaySetup:
    bundle = load_bundle(write_bundle(tmp_path / "letters"))
    return ReplaySetup(bundle, letters(), letter_traces(), ModelPassTimes(0.002, 0.03, 0.1), seed=0)


async def test_targets_replay_their_texts_through_a_real_hub_and_modelled_paths(setup: ReplaySetup) -> None:
    links = (LinkTimes(0.001), LinkTimes(0.0), LinkTimes(0.002, 1e8))
    async with running_hub() as hub:
        point = Point("test", "ours", HubPlan(), links, DraftShape(4, 4), sessions=2)

        def run() -> tuple[ReplayCrowd, HubFacts]:
            with ReplayCrowd(setup, point, hub.url) as crowd:
                crowd.wait_for(60, [0] * 6, 60)
                return crowd, read_status(hub.url)

        crowd, facts = await asyncio.to_thread(run)
        reports = [target.report for target in facts.targets]
        assert len(reports) == 3
        assert all(report is not None and report.rounds > 0 for report in reports), "the hub chooses shapes by these"
        assert len(crowd.logs) == 6
        assert sum(log.answers for log in crowd.logs) >= 6
        assert [log.inexact for log in crowd.logs] == [0] * 6
        drafted = [done for log in crowd.logs for _, done in log.rounds if done.origin == HUB]
        assert drafted
        assert sum(done.accepted for done in drafted) > 0
        # Ids alone: n-grams want no features, and what goes up does not grow with the text.
        assert all(0 < done.bytes_up < 100 for done in drafted)
        assert all(0 < done.bytes_down < 150 for done in drafted)
        assert {target.drafter for target in hub.hub.facts().targets} <= {"ngram"}


class AnsweredChannel:
    """A `DraftChannel` that asks for nothing and has these answers; the rest of it is of no use here."""

    def __init__(self, services_us: list[int]) -> None:
        self.services_us = services_us
        self.epoch = 0

    def request(self, shape: DraftShape) -> Asked:
        self.epoch += 1
        return Asked(self.epoch, 0)

    def wait(self, timeout_s: float) -> DraftArrived:
        service_us = self.services_us[self.epoch - 1]
        tree = DraftTree.chain([1] if service_us else [])
        session = cast("TargetSession", None)
        return DraftArrived(session, self.epoch, 0, tree, 900, service_us, 0, service_us, 40)


def test_what_the_hub_answers_without_its_drafter_is_no_draft() -> None:
    log = TargetLog()
    channel = WatchedChannel(cast("DraftChannel", AnsweredChannel([800, 0, 700])), log, lambda: 5.0)
    for _ in range(3):
        channel.request(DraftShape(2, 2))
        assert channel.wait(1.0) is not None
    assert [mark.service_s for mark in log.drafts] == [0.0008, 0.0007]


def test_targets_without_a_hub_decode_plainly(setup: ReplaySetup) -> None:
    point = Point("test", "plain", None, (LinkTimes(0.0),) * 2, DraftShape(4, 4))
    with ReplayCrowd(setup, point, None) as crowd:
        crowd.wait_for(50, [0] * 2, 60)
    assert all(done.emitted == 1 for log in crowd.logs for _, done in log.rounds)
    assert [log.inexact for log in crowd.logs] == [0, 0]


def test_the_prompt_is_that_of_the_record() -> None:
    assert tuple(letter_trace().prompt) == PROMPT


def test_a_sequence_follows_the_text_that_begins_as_it_does() -> None:
    texts = [letter_trace(seed, prompt=(*PROMPT, seed)) for seed in range(3)]
    engine = ReplayEngine(texts, letter_source())
    for text in texts:
        wanted = Request(text.prompt, SamplingParams(), len(text.answer), 128, DraftShape(4, 4), ignore_eos=True)
        answer = decode(engine, letters(), wanted, NgramDrafts(), clock=lambda: 0.0)
        assert list(answer.token_ids) == text.answer
