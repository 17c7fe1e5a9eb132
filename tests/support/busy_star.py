"""Targets without models that come, decode, report and go, for whoever watches a hub.

python -m tests.support.busy_star ws://127.0.0.1:8317 TARGETS|mixed SECONDS [MILLISECONDS OF A VERIFY PASS]
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass

from starsd_edge.protocol.messages import Report
from starsd_edge.telemetry.rtt import acknowledge_now
from tests.support.hub_client import HubClient, connect_to

_VERIFY_S = 0.04
_PERIOD = 3
"""The text of a fake target repeats so often that n-grams guess some of it."""


@dataclass
class Habits:
    """How a fake target behaves.

    Attributes:
        rounds: of one stay.
        verify_s: between two requests.
        surprise: share of tokens that no draft can know.
        why_off: what it reports.
    """

    rounds: int
    verify_s: float = _VERIFY_S
    surprise: float = 0.2
    why_off: str = ""


class FakeTarget:
    """One target: some stays at the hub, one after the other."""

    def __init__(self, name: str, habits: Habits, seed: int) -> None:
        self.name = name
        self.habits = habits
        self.random = random.Random(seed)
        self.rounds = self.hub_rounds = self.tokens = 0
        self.stays = 0

    async def stay(self, url: str) -> None:
        """Come, decode, go."""
        async with connect_to(url) as websocket:
            client = HubClient(websocket)
            sock = websocket.transport.get_extra_info("socket")
            await client.introduce(target=self.name, max_context=1 << 17)
            text = [self._next([5, 6, 7], position) for position in range(12)]
            tag = await client.open(text)
            new = len(text) - 1
            for epoch in range(1, self.habits.rounds + 1):
                draft = await client.draft(tag, epoch, text, new, (5, 5, 1))
                acknowledge_now(sock)
                await asyncio.sleep(self.habits.verify_s * self.random.uniform(0.8, 1.2))
                new = self._accept(text, draft.ids)
                if epoch % 8 == 1:
                    await client.send(self._report())
            await client.close(tag)
        self.stays += 1

    def _next(self, text: list[int], position: int) -> int:
        return self.random.randrange(8, 20) if self.random.random() < self.habits.surprise else 5 + position % _PERIOD

    def _accept(self, text: list[int], drafted: list[int]) -> int:
        """Append what this target says: the draft as far as it agrees, and one token more."""
        new = 0
        for guess in [*drafted, -1]:
            text.append(self._next(text, len(text)))
            new += 1
            if text[-1] != guess:
                break
        self.rounds += 1
        self.hub_rounds += bool(drafted) and not self.habits.why_off
        self.tokens += new if drafted else 0
        return new

    def _report(self) -> Report:
        plain = self.rounds - self.hub_rounds
        verify_us = round(1e6 * self.habits.verify_s)
        return Report(
            rounds=self.rounds,
            hub_rounds=self.hub_rounds,
            local_rounds=0,
            tokens=self.tokens,
            draft_us=self.hub_rounds * (verify_us + 3000),
            plain_us=plain * verify_us,
            verify_us=self.rounds * verify_us,
            wait_us=self.hub_rounds * 2500,
            why_off=self.habits.why_off,
        )


async def come_and_go(url: str, targets: list[FakeTarget], seconds: float, enough: asyncio.Event | None = None) -> None:
    """All of them at once, each as often as the time allows, or until it is `enough`."""

    async def visit(target: FakeTarget) -> None:
        await asyncio.sleep(target.random.uniform(0, 0.5))
        while True:
            await target.stay(url)
            await asyncio.sleep(target.random.uniform(0.05, 0.3))

    waiting = [*(visit(target) for target in targets), (enough or asyncio.Event()).wait()]
    left = {asyncio.ensure_future(each) for each in waiting}
    done, _ = await asyncio.wait(left, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    while left:  # wait_for of Python 3.11 swallows a cancellation now and then
        for visiting in left:
            visiting.cancel()
        _, left = await asyncio.wait(left, timeout=0.5)
    for visiting in done:
        visiting.result()  # a visit ends by itself only when it fails


def steady(count: int, rounds: int = 10_000, verify_s: float = _VERIFY_S) -> list[FakeTarget]:
    """Targets that differ in nothing but their names."""
    return [FakeTarget(f"orin-{number:02}", Habits(rounds, verify_s), number) for number in range(1, count + 1)]


def mixed() -> list[FakeTarget]:
    """A few targets, each with something to show."""
    habits = {
        "orin-kitchen": Habits(10_000, 0.03, 0.1),
        "orin-hall": Habits(10_000, 0.05, 0.3),
        "nano-1": Habits(10_000, 0.09, 0.5, "late"),
        "nano-2": Habits(30, 0.06, 0.2),
        "thor": Habits(10_000, 0.02, 0.05),
        "a target with a very long name, longer than its column": Habits(10_000, 0.07, 0.4, "silent"),
    }
    return [FakeTarget(name, each, seed) for seed, (name, each) in enumerate(habits.items())]


if __name__ == "__main__":
    url, count, seconds, *verify_ms = sys.argv[1:]
    verify_s = float(verify_ms[0]) / 1e3 if verify_ms else _VERIFY_S
    asyncio.run(
        come_and_go(url, mixed() if count == "mixed" else steady(int(count), verify_s=verify_s), float(seconds))
    )
