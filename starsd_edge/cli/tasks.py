"""Tasks that end when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

_INSIST_S = 0.5


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel, and insist: before Python 3.12, `wait_for` swallows a cancellation that meets its result."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_S)


@contextlib.asynccontextmanager
async def meanwhile(other: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run it until the block ends; what it failed with is raised then."""
    task = asyncio.create_task(other)
    try:
        yield
    finally:
        await end_task(task)
    if not task.cancelled():
        task.result()
