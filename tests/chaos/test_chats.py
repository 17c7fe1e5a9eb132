"""Chats on a kept KV and a kept session while connections break and the hub drops sessions.

Turns go on, turn back, branch off and begin anew; every text is that of the target alone on a fresh sequence, the hub
never keeps more than the session in use, and once all is well it drafts again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.decoder import Answer, Piece, decode
from starsd_jetson.drafting import NgramDrafts
from starsd_jetson.hub_drafting import HubDrafts
from starsd_jetson.kept_channel import KeptChannels
from starsd_jetson.kept_sequences import KeptSequences
from starsd_jetson.wait_policy import WaitPolicy
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.decoding import PROMPT, WORDS, Plain, letters, plain_answer, request
from tests.support.hub_client import RunningHub, free_ports, running_hub
from tests.support.linked_target import LinkedTarget
from tests.support.star import FORGETFUL, nothing_is_left, self_drafter, until

TURNS = 25
CONTEXT = 300
LONGEST = 200
"""A prompt beyond this loses its beginning, as a chat's does."""


def cut_connections(hub: RunningHub) -> None:
    for peer in list(hub.hub._connections):
        peer.cut("a test wants it")


def drop_sessions(hub: RunningHub) -> None:
    for view in hub.hub._protocol.sessions():
        hub.hub._carry_out(hub.hub._protocol.failed(view.session, 0, "a test wants it"))


class Chat:
    """Answers one after the other on one link."""

    def __init__(self, target: LinkedTarget) -> None:
        self.channels = KeptChannels(target.link.open_channel)
        self._target = target
        self._source = HubDrafts(self.channels.open, NgramDrafts(), WaitPolicy(5.0), time.monotonic)
        self._kept = KeptSequences(target.engine, CONTEXT)

    async def answer(
        self, text: list[int], sampling: SamplingParams, on_piece: Callable[[int], None] = lambda number: None
    ) -> Answer:
        """The answer to this text; `on_piece` is told on the event loop how many pieces there are."""
        wanted = replace(self._target.wanted, prompt=tuple(text), sampling=sampling)
        loop, pieces = asyncio.get_running_loop(), 0

        def count(piece: Piece) -> None:
            nonlocal pieces
            pieces += 1
            loop.call_soon_threadsafe(on_piece, pieces)

        engine, words = self._target.engine, letters([])
        answer = await asyncio.to_thread(
            decode, engine, words, wanted, self._source, clock=time.monotonic, kept=self._kept, on_piece=count
        )
        assert Plain.of(answer) == plain_answer(engine, words, wanted)
        return answer


def next_text(rng: random.Random, text: list[int]) -> list[int]:
    """What comes after this: usually more of it."""
    move = rng.random()
    if move < 0.15:
        text = text[: rng.randrange(3, len(text))]
    elif move < 0.2:
        text = list(PROMPT)
    if len(text) > LONGEST:
        text = text[-LONGEST // 2 :]
    return [*text, *(rng.randrange(WORDS) for _ in range(rng.randrange(1, 6)))]


@pytest.mark.parametrize("own_ports", [False, True], ids=["shared", "dedicated"])
@pytest.mark.parametrize("branching", [1, 3])
async def test_no_fault_changes_what_a_chat_says(own_ports: bool, branching: int) -> None:
    rng = random.Random(branching)
    wanted = request(shape=DraftShape(4 * branching, 4, branching), context=CONTEXT, max_tokens=16)
    door = DoorSettings(own_ports=free_ports(6) if own_ports else None)
    async with running_hub([self_drafter()], HubSettings(door, FORGETFUL)) as hub:
        async with LinkedTarget(hub.url, wanted) as target:
            await asyncio.to_thread(target.connect)
            chat, text, reused = Chat(target), list(PROMPT), 0
            for _ in range(TURNS):
                fault = rng.choice([cut_connections, drop_sessions, None, None, None])
                at = rng.randrange(1, 4)

                def strike(number: int, fault: Callable[[RunningHub], None] | None = fault, at: int = at) -> None:
                    if fault is not None and number == at:
                        fault(hub)

                sampling = SamplingParams(rng.choice([0.0, 0.0, 0.7]), seed=rng.randrange(5))
                answer = await chat.answer(text, sampling, strike)
                reused += answer.reused_tokens
                text = next_text(rng, [*text, *answer.token_ids])
                await until(lambda: hub.hub.facts().sessions <= 1, "a session is left on the hub")
            assert reused > 500
            await until(lambda: target.link.figures.is_up, "the target did not come back")
            for _ in range(100):  # the hub may have to be given the whole text once more
                if (await chat.answer(text, SamplingParams())).stats.by_origin.get(HUB, 0):
                    break
            else:
                pytest.fail("the hub drafted no more")
            chat.channels.close()
        await nothing_is_left(hub)
