"""What an attached monitor costs a hub: its CPU time with one and without, by turns, in one run.

python -m tests.support.monitor_cost [TARGETS] [SECONDS OF A TURN] [TURNS] [MILLISECONDS OF A VERIFY PASS]
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import time
from contextlib import aclosing

import psutil

from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.feed_client import FeedClient
from starsd_jetson.hub_endings import Backoff

_HUB = (sys.executable, "-m", "starsd_edge.cli", "run-draft", "--port", "0", "--log-level", "warning")
_SETTLE_S = 3.0


async def watch(url: str, seen: list[Snapshot]) -> None:
    """A monitor that keeps the newest snapshot."""
    client = FeedClient(url, {}, Backoff(random.random), time.monotonic)
    async with aclosing(client.items()) as items:
        async for item in items:
            if isinstance(item, Snapshot):
                seen[:] = [item]


async def turn(hub: psutil.Process, seconds: float) -> float:
    """CPU seconds per second of the hub, system time included."""
    before, began = hub.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after, ended = hub.cpu_times(), time.monotonic()
    return (after.user + after.system - before.user - before.system) / (ended - began)


async def measure(url: str, hub: psutil.Process, seconds: float, turns: int) -> tuple[list[float], list[float]]:
    """Turns without and with a monitor."""
    without, watched = [], []
    for _ in range(turns):
        without.append(await turn(hub, seconds))
        seen: list[Snapshot] = []
        watching = asyncio.ensure_future(watch(url, seen))
        await asyncio.sleep(0.5)
        watched.append(await turn(hub, seconds))
        while not watching.done():
            watching.cancel()
            await asyncio.wait({watching}, timeout=0.5)
        targets = len(seen[-1].facts.targets)
        print(
            f"without {without[-1]:.4f}, with {watched[-1]:.4f} CPU seconds per second, {targets} targets", flush=True
        )
    return without, watched


def main(targets: int = 50, seconds: float = 8.0, turns: int = 4, verify_ms: int = 40) -> None:
    """Run a hub and fake targets as processes of their own, and print the difference."""
    with subprocess.Popen(_HUB, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        url = hub.stdout.readline().split()[2]
        crowd = [sys.executable, "-m", "tests.support.busy_star", url, str(targets), "3600", str(verify_ms)]
        with subprocess.Popen(crowd) as star:
            try:
                time.sleep(_SETTLE_S)
                without, watched = asyncio.run(measure(url, psutil.Process(hub.pid), seconds, turns))
            finally:
                star.terminate()
                hub.terminate()
    base, more = statistics.mean(without), statistics.mean(watched)
    print(f"mean: {base:.4f} without, {more:.4f} with: {100 * (more - base):+.2f} % of a core")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
