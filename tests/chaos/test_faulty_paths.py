"""A real link and a real hub with a bad path between them.

Whatever the path does, the text is that of the target alone, nothing raises, the answer goes on, and once the path is
good again the hub drafts again. Time plays no part but as a guard against hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from starsd_edge.protocol.hub_side import HubLimits
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry import hub_opening
from starsd_edge.telemetry.rounds import HUB, Round
from starsd_jetson import hub_link, hub_socket
from starsd_jetson.decoder import Answer
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.settings import HubSettings
from tests.support.decoding import request
from tests.support.hub_client import running_hub
from tests.support.linked_target import LinkedTarget, SlowEngine
from tests.support.pace import Pace
from tests.support.proxy import Proxy
from tests.support.star import CONTEXT, HANG_S, IMPATIENT, nothing_is_left, path_to_a_hub, until

Fault = Callable[[Proxy], None]


@pytest.fixture(autouse=True)
def impatient_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a link does after five or ten silent seconds it does after one or two here."""
    monkeypatch.setattr(hub_socket, "HEARTBEAT_S", 1.0)
    monkeypatch.setattr(hub_opening, "OPEN_TIMEOUT_S", 2.0)
    monkeypatch.setattr(hub_link, "WELCOME_TIMEOUT_S", 2.0)


class Ride:
    """One answer over a bad path: stands still where the test says, and ends once the hub has helped again."""

    def __init__(self, target: LinkedTarget) -> None:
        self.target = target
        self.pace = Pace(stop_at=1)
        self.rounds: list[Round] = []
        self._healed_at: int | None = None
        self._answer = asyncio.ensure_future(
            asyncio.to_thread(
                target.answer, None, self.pace.on_piece, self.rounds.append, lambda: self.hub_rounds_since_heal() >= 5
            )
        )

    async def begun(self) -> None:
        """The hub drafts, and the answer stands still."""
        await self.go(more=10)
        while not any(each.origin == HUB for each in self.rounds):
            assert self.pace.tokens < CONTEXT / 2, "the hub never drafted"
            await self.go(more=10)

    async def go(self, more: int) -> None:
        """Go on for so many tokens and stand still."""
        await self.pace.standing()
        self.pace.go(more)
        await self.pace.standing()

    def hub_rounds_since_heal(self) -> int:
        return 0 if self._healed_at is None else sum(each.origin == HUB for each in self.rounds[self._healed_at :])

    async def healed(self) -> Answer:
        """The path is good again, and so it ends before long."""
        self._healed_at = len(self.rounds)
        self.target.engine.pass_s = 0.02  # a broken connection may take seconds to be noticed
        self.pace.go()
        answer = await self._answer
        assert answer.finish_reason == "cancelled", "the hub drafted no more"
        assert self.target.would_say(answer)
        return answer


def delay(proxy: Proxy) -> None:
    proxy.up.delay_s = proxy.down.delay_s = 0.05


def thin_line(proxy: Proxy) -> None:
    proxy.up.bytes_per_s = proxy.down.bytes_per_s = 1500.0


def stall_up(proxy: Proxy) -> None:
    proxy.up.stall()


def stall_down(proxy: Proxy) -> None:
    proxy.down.stall()


def flips_up(proxy: Proxy) -> None:
    proxy.up.flips = True


def flips_down(proxy: Proxy) -> None:
    proxy.down.flips = True


MENDED: dict[str, Fault] = {
    "delay": delay,
    "thin line": thin_line,
    "stalled towards the hub": stall_up,
    "stalled towards the target": stall_down,
    "bits turned over towards the hub": flips_up,
    "bits turned over towards the target": flips_down,
}
"""The connection may live through these."""


def reset(proxy: Proxy) -> None:
    proxy.reset()


def resets(proxy: Proxy) -> None:
    proxy.up.resets_after = 600
    proxy.reset()


def no_more_from_the_hub(proxy: Proxy) -> None:
    proxy.half_close("down")


def no_more_to_the_hub(proxy: Proxy) -> None:
    proxy.half_close("up")


def hole_up(proxy: Proxy) -> None:
    proxy.up.swallows = True


def hole_down(proxy: Proxy) -> None:
    proxy.down.swallows = True


def hole(proxy: Proxy) -> None:
    hole_up(proxy)
    hole_down(proxy)


def shut(proxy: Proxy) -> None:
    proxy.refuses = True
    proxy.reset()


BROKEN: dict[str, Fault] = {
    "reset": reset,
    "reset again and again": resets,
    "half-closed by the hub": no_more_from_the_hub,
    "half-closed by the target": no_more_to_the_hub,
    "black hole towards the hub": hole_up,
    "black hole towards the target": hole_down,
    "black hole": hole,
    "shut": shut,
}
"""The connection does not live through these."""


@pytest.mark.parametrize("branching", [1, 3])
@pytest.mark.parametrize("name", [*MENDED, *BROKEN])
async def test_no_path_changes_the_text_and_a_good_one_is_used_again(name: str, branching: int) -> None:
    sampling, shape = SamplingParams(0.7, seed=9), DraftShape(4 * branching, 4, branching)
    wanted = request(sampling=sampling, shape=shape, max_tokens=CONTEXT - 100, context=CONTEXT)
    async with path_to_a_hub(IMPATIENT) as (hub, proxy):
        # Waits of half a second whatever pays: the matter is whether the hub comes back, not whether it is worth it.
        async with LinkedTarget(proxy.url, wanted, wait_s=0.5) as target:
            await asyncio.to_thread(target.connect)
            ride = Ride(target)
            await ride.begun()
            (MENDED | BROKEN)[name](proxy)
            await ride.go(more=60)
            while "turned over" in name and proxy.up.flipped + proxy.down.flipped < 5:
                await ride.go(more=20)
            proxy.heal()
            if name in BROKEN:
                await until(lambda: target.link.figures.connections > 1, "the target did not come back")
            await ride.healed()
        await nothing_is_left(hub)


async def test_corrupted_handshakes_end_attempts_and_nothing_else() -> None:
    """What is turned over in a handshake may read as any refusal, so the target may rightly not come back."""
    wanted = request(sampling=SamplingParams(0.7, seed=9))
    async with path_to_a_hub(IMPATIENT) as (hub, proxy):
        proxy.up.spared = proxy.down.spared = 0
        proxy.up.flips = proxy.down.flips = True
        targets = [LinkedTarget(proxy.url, wanted, name=f"target-{number}") for number in range(12)]
        for target in targets:
            target.link.start()
        await until(lambda: proxy.connections >= 4 * len(targets), "the targets gave up")
        answers = [await asyncio.to_thread(target.answer) for target in targets]
        assert all(target.would_say(answer) for answer, target in zip(answers, targets, strict=True))
        await asyncio.gather(*(asyncio.to_thread(target.link.stop) for target in targets))
        await nothing_is_left(hub)


class FeatureReader(NgramDrafter):
    """Drafts by n-grams and wants features with every row."""

    feature_codecs = ("f2",)


async def test_a_slow_link_that_works_is_not_cut_and_brings_a_whole_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """160 KiB of features at 40 kB/s, which takes four times as long as a silent link is kept."""
    monkeypatch.setattr(hub_socket, "HEARTBEAT_S", 0.5)
    rows, width = 40, 2048
    engine = SlowEngine(1, max_context=CONTEXT, feature_width=width)
    settings = HubSettings(limits=HubLimits(heartbeat_s=0.5))
    wanted = request(context=CONTEXT)
    async with (
        running_hub([FeatureReader(max_sessions=4)], settings) as hub,
        Proxy(hub.port) as proxy,
        LinkedTarget(proxy.url, wanted, engine=engine, codecs=["f2"]) as target,
    ):
        await asyncio.to_thread(target.connect)
        prompt = [1, 2, 3, 4] * (rows // 4) + [1]
        channel = target.link.open_channel(prompt, "greedy")
        channel.append(prompt[1:], np.ones((rows, width), dtype=np.float16))
        proxy.up.bytes_per_s = 40_000.0
        while channel.request(DraftShape(4, 4)) is None:
            await asyncio.sleep(0.01)
        arrived = await asyncio.to_thread(channel.wait, HANG_S)
        assert arrived is not None
        assert (arrived.base_len, arrived.tree.tokens.tolist()) == (rows, [2, 3, 4, 1])
        assert (target.link.figures.connections, hub.hub.facts().drafters[0].rows) == (1, rows)
        assert proxy.up.passed < 1.1 * 2 * rows * width + 5000
