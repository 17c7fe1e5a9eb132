"""A hub whose model the test keeps, the path to it, and waiting for what must come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starsd_edge.protocol.hub_side import HubLimits
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.decoding import WORDS
from tests.support.hub_client import TOKENIZER_FP, RunningHub, running_hub
from tests.support.prefix_engine import PrefixEngine
from tests.support.proxy import Proxy

CONTEXT = 2048
MODEL = 1
"""Seed of the numpy engine on both sides: the hub's model is the target's own."""
HANG_S = 60.0
"""Guards against hanging; nothing takes nearly as long."""
FORGETFUL = HubLimits(resume_grace_s=1.0)
"""Sessions whose target is away are freed after one second."""
IMPATIENT = HubLimits(heartbeat_s=1.0, resume_grace_s=1.0)
"""A silent target is away after two."""


def self_drafter(max_sessions: int = 64) -> CausalLmDrafter:
    """Drafts with the target's own model."""
    return CausalLmDrafter(PrefixEngine(MODEL, max_context=CONTEXT), TOKENIZER_FP, WORDS, max_sessions)


@asynccontextmanager
async def path_to_a_hub(
    limits: HubLimits = FORGETFUL, drafter: CausalLmDrafter | None = None
) -> AsyncIterator[tuple[RunningHub, Proxy]]:
    """A hub and a path to it that is good at first."""
    settings = HubSettings(DoorSettings(), limits)
    async with running_hub([drafter or self_drafter()], settings) as hub, Proxy(hub.port) as proxy:
        yield hub, proxy


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; `what` is the matter if it never holds."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def nothing_is_left(hub: RunningHub) -> None:
    """Sessions end with their targets, and with them what the drafter holds."""
    await until(lambda: hub.hub.facts().sessions == 0, "sessions are left on the hub")
    await until(lambda: hub.hub.facts().drafters[0].sessions == 0, "sessions are left in the drafter")
