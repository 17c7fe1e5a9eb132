"""Many targets on one hub: what they leave behind, how they come back, and that one which stands still stops none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TypeVar

import pytest
from websockets.exceptions import ConnectionClosed

from starsd_edge.listening import bind
from starsd_edge.protocol.messages import DraftRequest, TargetMessage
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import HUB, Round
from starsd_jetson.decoder import Answer
from starsd_jetson.drafting import NoDrafts
from starsd_server import front_door
from starsd_server.settings import DoorSettings, HubSettings
from tests.support import hub_client
from tests.support.decoding import Plain, request
from tests.support.hub_client import HubClient, connect_to, running_hub
from tests.support.linked_target import LinkedTarget, SlowEngine
from tests.support.pace import Pace
from tests.support.proxy import Proxy
from tests.support.star import CONTEXT, FORGETFUL, MODEL, nothing_is_left, path_to_a_hub, self_drafter, until

Result = TypeVar("Result")
A_FEW_BYTES = 12
"""Positions, epochs and durations take up to two bytes more each as they grow."""
WAIT_S = 20.0
"""For drafts, where a test is about being served and not about speed."""


class PatientEngine(SlowEngine):
    """Leaves so much of the machine to the others that forty of them can be served at once."""

    pass_s = 0.02


def a_target(url: str, number: int, **wanted: object) -> LinkedTarget:
    """One that has no drafts but the hub's, and waits for those it asked for."""
    sampling = SamplingParams(0.5 * (number % 3), seed=number)
    asked = request(**{"sampling": sampling, "max_tokens": 1500, "context": CONTEXT, **wanted})
    engine = PatientEngine(MODEL, max_context=CONTEXT)
    return LinkedTarget(url, asked, engine=engine, fallback=NoDrafts(), wait_s=WAIT_S, name=f"target-{number}")


async def at_once(calls: list[Callable[[], Result]]) -> list[Result]:
    """All of them at the same time, each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls)))


def answer_until_served(target: LinkedTarget) -> Answer:
    """An answer that ends once the hub has drafted for some of its rounds."""
    rounds: list[Round] = []
    answer = target.answer(on_round=rounds.append, cancelled=lambda: sum(done.origin == HUB for done in rounds) >= 3)
    assert answer.finish_reason == "cancelled", "the hub never drafted"
    return answer


def come_and_go(url: str, number: int) -> None:
    with a_target(url, number) as target:
        target.connect()
        answer = answer_until_served(target)
    assert target.would_say(answer)


async def test_fifty_targets_come_and_go_and_leave_nothing() -> None:
    drafter = self_drafter()
    async with path_to_a_hub(drafter=drafter) as (hub, proxy):
        for start in range(0, 40, 10):
            await at_once([partial(come_and_go, proxy.url, number) for number in range(start, start + 10)])
        # The last ten vanish in the middle.
        targets = [a_target(proxy.url, number, max_tokens=100) for number in range(40, 50)]
        paces = [Pace(stop_at=10) for _ in targets]
        for target in targets:
            target.link.start()
        running = asyncio.ensure_future(
            at_once([partial(target.answer, None, pace.on_piece) for target, pace in zip(targets, paces, strict=True)])
        )
        for pace in paces:
            await pace.standing()
        await until(lambda: hub.hub.facts().sessions == 10, "the sessions of this answer are not there")
        proxy.refuses = True
        proxy.reset()
        await nothing_is_left(hub)
        assert not drafter._sessions
        for pace in paces:
            pace.go()
        for answer, target in zip(await running, targets, strict=True):
            assert Plain.of(answer) == target.plain()
        await at_once([target.link.stop for target in targets])


async def test_forty_targets_come_back_to_a_restarted_hub() -> None:
    async with path_to_a_hub() as (_, proxy):
        targets = [a_target(proxy.url, number) for number in range(40)]
        for target in targets:
            target.link.start()
        await until(lambda: all(target.link.figures.connections > 0 for target in targets), "not all were welcomed")
        async with running_hub([self_drafter()], HubSettings(limits=FORGETFUL)) as second:
            proxy.upstream = second.port
            proxy.reset()
            await until(lambda: all(t.link.figures.connections > 1 for t in targets), "not all came back")
            answers = await at_once([partial(answer_until_served, target) for target in targets])
            assert all(target.would_say(answer) for answer, target in zip(answers, targets, strict=True))
            assert all(any("back after a restart" in line for line in target.notices) for target in targets)
            await at_once([target.link.stop for target in targets])
            await nothing_is_left(second)


def bind_with_a_small_buffer(host: str, port: int, has_token: bool) -> socket.socket:
    sock = bind(host, port, has_token)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # connections inherit it
    return sock


async def send_for_ever(client: HubClient, message: TargetMessage) -> None:
    with suppress(ConnectionClosed):
        while True:
            await client.send(message)
            await asyncio.sleep(0)


async def test_a_target_that_reads_nothing_is_dropped_while_another_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "_WRITE_LIMIT", (4096, 1024))
    monkeypatch.setattr(hub_client, "bind", bind_with_a_small_buffer)
    settings = HubSettings(DoorSettings(max_waiting_frames=8, send_timeout_s=2.0), FORGETFUL)
    async with (
        running_hub([self_drafter()], settings) as hub,
        Proxy(hub.port) as proxy,
        a_target(hub.url, 1) as target,
        connect_to(proxy.url) as websocket,
    ):
        await asyncio.to_thread(target.connect)
        idle = HubClient(websocket)
        await idle.introduce(target="idle", max_tree=65, max_context=CONTEXT)
        text = [1, 2, 3] * 6
        tag = await idle.open(text)
        await idle.draft(tag, 1, text, new=len(text) - 1, shape=(60, 8, 8))
        assert len(hub.hub.facts().targets) == 2
        proxy.down.stall()
        again = DraftRequest(tag, 1, len(text) - 1, len(text) - 1, [], 60, 8, 8)
        # The same request again and again costs the hub nothing but the answer.
        asking = asyncio.ensure_future(send_for_ever(idle, again))
        served = asyncio.ensure_future(asyncio.to_thread(answer_until_served, target))
        await until(lambda: len(hub.hub.facts().targets) == 1, "the target that reads nothing is still there")
        assert target.would_say(await served)
        assert target.would_say(await asyncio.to_thread(answer_until_served, target))
        proxy.reset()
        await asking


async def test_bytes_per_round_do_not_grow_with_the_text() -> None:
    rounds: list[Round] = []
    passed: list[int] = []
    async with path_to_a_hub() as (_, proxy):

        def on_round(done: Round) -> None:
            rounds.append(done)
            passed.append(proxy.up.passed + proxy.down.passed)

        async with a_target(
            proxy.url, 1, sampling=SamplingParams(), shape=DraftShape(8, 4, 2), max_tokens=1500, context=CONTEXT
        ) as target:
            target.engine = SlowEngine(MODEL, max_context=CONTEXT)
            await asyncio.to_thread(target.connect)
            answer = await asyncio.to_thread(target.answer, None, lambda piece: None, on_round)
    assert Plain.of(answer) == target.plain()
    drafted = [done for done in rounds if done.origin == HUB]
    assert len(drafted) > 200
    early, late = drafted[5:65], drafted[-65:-5]
    assert mean(done.bytes_up for done in late) < mean(done.bytes_up for done in early) + A_FEW_BYTES
    assert mean(done.bytes_down for done in late) < mean(done.bytes_down for done in early) + A_FEW_BYTES
    on_the_wire = [after - before for before, after in pairwise(passed)]
    assert mean(on_the_wire[-65:-5]) < mean(on_the_wire[5:65]) + 2 * A_FEW_BYTES
