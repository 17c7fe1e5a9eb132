"""Targets on the real hub, over real sockets: the same answers as alone, and drafts that are accepted."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from starsd_edge.listening import bind
from starsd_edge.protocol.messages import WIRE_VERSION, Hello
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.decoder import Answer, Piece, Request, decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_drafting import HubDrafts
from starsd_jetson.hub_link import HubLink
from starsd_jetson.wait_policy import WaitPolicy
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.contract import Drafter, DrafterRegistry
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.hub import Hub
from starsd_server.settings import HubSettings
from tests.support.decoding import Plain, letters, plain_answer, request
from tests.support.hub_client import running_hub
from tests.support.prefix_engine import PrefixEngine

TOKENIZER_FP = "a" * 64
WAIT_S = 20.0
"""Every draft is waited for and verified: whether that pays is not the matter here, and a busy machine may say no."""
PROMPTS = ((0, 1, 0, 2, 0, 1, 0), (5, 4, 3, 5, 4), (9,))


class SlowEngine(PrefixEngine):
    """Leaves the machine to others during a pass, as a model does."""

    def forward(self, *arguments, **named):  # type: ignore[no-untyped-def]
        time.sleep(0.003)
        return super().forward(*arguments, **named)


def self_drafting() -> Drafter:
    return CausalLmDrafter(PrefixEngine(1), TOKENIZER_FP, 24, 8)


def ngrams() -> Drafter:
    return NgramDrafter(8)


def run_target(
    url: str,
    wanted: Request,
    fallback: Callable[[], DraftSource],
    on_piece: Callable[[Piece], None] = lambda piece: None,
) -> Answer:
    """What one target process does; blocks."""
    shape = wanted.shape
    hello = Hello(
        [WIRE_VERSION], "t", 24, TOKENIZER_FP, "s", "f", "none", 0, [], shape.max_nodes + 1, shape.max_depth, 256,
        shape.branching == 1,
    )  # fmt: skip
    address = HubAddress.parse(url)
    with HubLink(address, hello, lambda line: None, time.monotonic, random.random) as link:
        link.wait_for_hub(20)
        source = HubDrafts(link.open_channel, fallback(), WaitPolicy(WAIT_S), time.monotonic)
        return decode(SlowEngine(1), letters([]), wanted, source, clock=time.monotonic, on_piece=on_piece)


async def run_together(url: str, wanted: Sequence[Request], fallback: Callable[[], DraftSource]) -> list[Answer]:
    return list(await asyncio.gather(*(asyncio.to_thread(run_target, url, each, fallback) for each in wanted)))


@pytest.mark.parametrize("shape", [DraftShape(4, 4, 1), DraftShape(12, 4, 3)])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("drafter", [self_drafting, ngrams])
async def test_three_targets_at_once_say_what_each_says_alone(
    drafter: Callable[[], Drafter], temperature: float, shape: DraftShape
) -> None:
    sampling = SamplingParams(temperature, seed=11)
    wanted = [request(prompt=prompt, sampling=sampling, shape=shape, max_tokens=50) for prompt in PROMPTS]
    async with running_hub([drafter()]) as hub:
        answers = await run_together(hub.url, wanted, NgramDrafts)
    for answer, each in zip(answers, wanted, strict=True):
        assert Plain.of(answer) == plain_answer(PrefixEngine(1), letters([]), each)
    assert sum(answer.stats.by_origin.get("hub", 0) for answer in answers) > 0


async def test_model_that_drafts_for_itself_is_believed() -> None:
    wanted = [request(prompt=prompt, max_tokens=80) for prompt in PROMPTS]
    async with running_hub([self_drafting()]) as hub:
        answers = await run_together(hub.url, wanted, NoDrafts)
    drafted = sum(answer.stats.drafted for answer in answers)
    assert drafted > 100
    assert sum(answer.stats.accepted for answer in answers) >= 0.99 * drafted


class Restart:
    """Between two rounds the hub dies, another takes its port, and the target finds it."""

    def __init__(self, at_token: int) -> None:
        self.at_token = at_token
        self.due = threading.Event()
        self.done = threading.Event()
        self.told = 0
        self.drafted_before = 0
        self.drafted_after = 0

    def on_piece(self, piece: Piece) -> None:
        self.told += len(piece.tokens)
        if self.done.is_set():
            self.drafted_after += piece.origins.count(HUB)
            return
        self.drafted_before += piece.origins.count(HUB)
        if self.told >= self.at_token:
            self.due.set()
            assert self.done.wait(20)


async def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_hub_restarted_in_the_middle_of_an_answer() -> None:
    wanted = request(max_tokens=100)
    restart = Restart(at_token=40)
    async with running_hub([self_drafting()]) as first:
        answering = asyncio.create_task(
            asyncio.to_thread(run_target, first.url, wanted, NoDrafts, on_piece=restart.on_piece)
        )
        await until(restart.due.is_set)
    second = Hub(DrafterRegistry([self_drafting()], ngrams(), False), HubSettings(), time.monotonic)
    await second.start(bind("127.0.0.1", first.port, has_token=False))
    try:
        await until(lambda: second.facts().sessions > 0)
        restart.done.set()
        answer = await answering
    finally:
        await second.stop()
    assert Plain.of(answer) == plain_answer(PrefixEngine(1), letters([]), wanted)
    assert restart.drafted_before > 0
    assert restart.drafted_after > 0, "speculation did not resume"


async def test_hub_frees_the_sessions_of_answers() -> None:
    drafter = CausalLmDrafter(PrefixEngine(1), TOKENIZER_FP, 24, 2)
    async with running_hub([drafter]) as hub:
        for prompt in PROMPTS * 2:  # more answers than the drafter has room for sessions
            answer = await asyncio.to_thread(run_target, hub.url, replace(request(), prompt=prompt), NoDrafts)
            assert answer.stats.by_origin.get("hub", 0) > 0
