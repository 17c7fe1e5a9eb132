"""A model that drafts for itself, over a real hub and a real link: at T = 0 the target believes it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_engine
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Answer, Request, decode
from starsd_jetson.drafting import NoDrafts
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_drafting import HubDrafts
from starsd_jetson.hub_link import HubLink
from starsd_jetson.target import Target
from starsd_jetson.wait_policy import WaitPolicy
from starsd_server.drafters.causal_lm import CausalLmDrafter
from tests.support.hub_client import running_hub

pytestmark = pytest.mark.model

PROMPTS = ["Why is the sky blue?", "Write a short poem about the sea.", "Count from one to twenty in words."]
SHAPE = DraftShape(4, 4)


def answer_all(target: Target, url: str, context: int = 256) -> list[Answer]:
    hello = target.hello("self", SHAPE, context)
    with HubLink(HubAddress(url), hello, lambda line: None, time.monotonic, random.random) as link:
        link.wait_for_hub(60)
        source = HubDrafts(link.open_channel, NoDrafts(), WaitPolicy(60), time.monotonic)
        requests = [
            Request(target.encode(prompt, raw=False), SamplingParams(), 48, context, SHAPE) for prompt in PROMPTS
        ]
        return [decode(target.engine, target.tokenizer, each, source, clock=time.monotonic) for each in requests]


async def test_it_accepts_what_it_drafts(
    bundle_fp32: Bundle, engine_fp32: Engine, tokenizer: Tokenizer, say: Callable[[str], None]
) -> None:
    # An engine serves one thread at a time, and hub and target have one each.
    hub_engine = open_engine(bundle_fp32, threads=2)
    drafter = CausalLmDrafter(hub_engine, bundle_fp32.manifest.fingerprints.tokenizer_fp, tokenizer.size, 4)
    async with running_hub([drafter]) as hub:
        answers = await asyncio.to_thread(answer_all, Target(bundle_fp32, engine_fp32, tokenizer), hub.url)
    stats = answers[0].stats
    for answer in answers[1:]:
        stats.merge(answer.stats)
    say(f"self-drafting: {stats.accepted} of {stats.drafted} drafted tokens accepted in {stats.rounds} rounds")
    assert stats.by_origin["hub"] >= stats.rounds - len(PROMPTS)  # an answer's last round may have room for no draft
    assert stats.drafted > 80
    assert stats.accepted >= 0.99 * stats.drafted
