"""Probes over a real link to a real hub, and to hubs that do not answer them."""

from __future__ import annotations

import asyncio
import time

import pytest

from starsd_edge.protocol.codec import PROBE_INTERVAL_S
from starsd_edge.protocol.messages import MAX_PROBE_BYTES, Ready, Welcome
from tests.support.decoding import request
from tests.support.linked_target import LinkedTarget
from tests.support.proxy import Proxy
from tests.support.scripted_hub import ScriptedHub, frame
from tests.support.star import HANG_S, running_hub, self_drafter

LATE_S = 0.2
"""Generous: on a good line the smallest probe takes far less."""


async def test_a_probe_tells_the_links_time_apart_from_the_hubs() -> None:
    async with (
        running_hub([self_drafter()]) as hub,
        Proxy(hub.port) as proxy,
        LinkedTarget(proxy.url, request()) as target,
    ):
        await asyncio.to_thread(target.connect)
        assert target.link.welcome is not None
        assert target.link.welcome.probes
        proxy.up.delay_s = 0.4
        answer = await asyncio.to_thread(target.link.probe, 10, 10, HANG_S)
        assert answer is not None
        assert answer.round_trip_us >= 400_000
        assert answer.hub_us < 400_000


async def test_the_largest_probes_go_both_ways_beside_a_decode() -> None:
    async with (
        running_hub([self_drafter()]) as hub,
        LinkedTarget(hub.url, request(), wait_s=HANG_S) as target,
    ):
        await asyncio.to_thread(target.connect)
        answering = asyncio.create_task(asyncio.to_thread(target.answer))
        for _ in range(3):
            answer = await asyncio.to_thread(target.link.probe, MAX_PROBE_BYTES, MAX_PROBE_BYTES, HANG_S)
            assert answer is not None, target.notices
            await asyncio.sleep(PROBE_INTERVAL_S)
        assert target.would_say(await answering)
        assert target.link.figures.recent_link_s


async def test_a_probe_that_comes_too_soon_is_refused_at_once() -> None:
    async with running_hub([self_drafter()]) as hub, LinkedTarget(hub.url, request()) as target:
        await asyncio.to_thread(target.connect)

        def two_at_once() -> bool:
            first, second = (target.link.probe(0, 0, HANG_S) for _ in range(2))
            return first is not None and second is None

        # A busy machine may let the interval pass between the two.
        assert any([await asyncio.to_thread(two_at_once) for _ in range(20)])


def test_an_old_hub_is_not_probed() -> None:
    with ScriptedHub() as hub, LinkedTarget(hub.url, request()) as target:
        target.connect()
        began = time.monotonic()
        assert target.link.probe(1, 1, HANG_S) is None
        assert time.monotonic() - began < HANG_S / 2, "it did not wait"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_hub_that_never_answers_costs_the_timeout_at_most(leaves: bool) -> None:
    def on_hello(_: object) -> list[bytes]:
        return [frame(Welcome(1, "h", "ngram", "fp", "none", 10.0, 4, 8, 4, probes=True)), frame(Ready("ngram"))]

    with ScriptedHub(on_hello=on_hello) as hub, LinkedTarget(hub.url, request()) as target:
        target.connect()
        if leaves:
            hub.stop()
        assert target.link.probe(1, 1, LATE_S) is None
