"""The demo's targets: processes that are started, read, and ended again whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from starsd_edge.children import end_with_parent
from starsd_edge.cli.monitor.modes import end_task
from starsd_edge.hub_process import PROGRAM, own_environment
from starsd_edge.telemetry.feed import Snapshot
from starsd_edge.telemetry.monitor.board import StarBoard
from starsd_edge.telemetry.monitor.feed_client import FeedLink
from starsd_edge.telemetry.monitor.model import MonitorModel

_DRAFT_WAIT_S = 10.0  # what is accepted should not depend on what else the machine is doing
_GRACE_S = 5.0  # from asking a process to end until it is killed
_MAX_LINE_BYTES = 1 << 22  # an answer's line carries its token ids


@dataclass(frozen=True)
class DemoPlan:
    """What to run.

    Attributes:
        target: directory of the bundle.
        hub: its address.
        prompts: one target for each.
        max_tokens: of an answer.
        threads: of each process's engine.
    """

    target: Path
    hub: str
    prompts: Sequence[str]
    max_tokens: int
    threads: int


@dataclass
class DemoTargetResult:
    """How one target fared.

    Attributes:
        figures: the figures of its answer by name; empty when it failed.
        first_s: seconds from the start of all targets until the first text of its answer.
        finished_s: likewise until its answer was whole.
        failure: one line, or "" when it answered.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    first_s: float = 0.0
    finished_s: float = 0.0
    failure: str = ""


class View:
    """Where the answers are shown. A context manager."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def piece(self, target: int, text: str) -> None:
        """More text of a target's answer."""

    def end(self, target: int, result: DemoTargetResult) -> None:
        """It is over."""

    def hub(self, news: StarBoard | FeedLink) -> None:
        """How the hub fares, or how its feed is connected."""


async def _nothing(url: str) -> None:
    """Nothing else goes on."""


class DemoStar:
    """The targets around a hub."""

    def __init__(
        self,
        plan: DemoPlan,
        view: View,
        program: Sequence[str] = PROGRAM,
        follow: Callable[[str], Coroutine[None, None, None]] = _nothing,
    ) -> None:
        """Args:
        follow: what else goes on while the targets answer; given the hub's address, and cancelled at their end.
        """
        self._plan = plan
        self._follow = follow
        self._view = view
        self._program = program

    async def run(self) -> list[DemoTargetResult]:
        """Start every target at once, and wait for their answers."""
        started = time.monotonic()
        with self._view:
            async with _meanwhile(self._follow(self._plan.hub)):
                return await _all_of([self._answer(number, started) for number in range(len(self._plan.prompts))])

    async def _answer(self, number: int, started: float) -> DemoTargetResult:
        plan = self._plan
        result = DemoTargetResult()
        arguments = ["run-target", str(plan.target), "--hub", plan.hub, "--require-hub", "--stream-json"]
        arguments += ["--draft-wait", str(_DRAFT_WAIT_S)]
        arguments += ["--name", f"target-{number + 1}", "--max-tokens", str(plan.max_tokens)]
        arguments += ["--threads", str(plan.threads), "--prompt", plan.prompts[number]]
        async with child_process([*self._program, *arguments]) as process:
            async for line in lines_of(process):
                event = json.loads(line)
                if event["type"] == "text":
                    result.first_s = result.first_s or time.monotonic() - started
                    self._view.piece(number, event["piece"])
                else:
                    result.figures = event["figures"]
                    result.finished_s = time.monotonic() - started
            code = await process.wait()
            if code != 0 or not result.figures:
                result.failure = await process.last_words() or f"ended with exit code {code}"
        self._view.end(number, result)
        return result


@contextlib.asynccontextmanager
async def _meanwhile(other: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run it until the block ends; what it failed with is raised then."""
    task = asyncio.create_task(other)
    try:
        yield
    finally:
        await end_task(task)
    if not task.cancelled():
        task.result()


async def _all_of(answers: Sequence[Coroutine[None, None, DemoTargetResult]]) -> list[DemoTargetResult]:
    """Their results. However this ends, all have ended, and none was cancelled twice: not `gather`, which cancels them
    too, so that a second time would cut short what the first one set off.
    """
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()  # raises what one of them raised
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Child:
    """A `starsd-edge` process whose standard output is read here; of what it says on standard error the end is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.stdout = cast("asyncio.StreamReader", process.stdout)
        self._errors = asyncio.create_task(_last_line(cast("asyncio.StreamReader", process.stderr)))

    async def wait(self) -> int:
        """Its exit code, when it ends."""
        return await self._process.wait()

    async def last_words(self) -> str:
        """The last line it wrote on standard error; call when it has ended."""
        return (await self._errors).removeprefix("error: ")

    async def end(self) -> None:
        """Ask it to end, and insist."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), _GRACE_S)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._errors.cancel()


@contextlib.asynccontextmanager
async def child_process(command: Sequence[str]) -> AsyncIterator[_Child]:
    """A child that is gone when the block ends. Ctrl-C on a terminal reaches us alone (it has a session of its own)."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        env=own_environment(),
        start_new_session=True,
        preexec_fn=partial(end_with_parent, signal.SIGTERM),
    )
    child = _Child(process)
    try:
        yield child
    finally:
        await child.end()


async def lines_of(process: _Child) -> AsyncIterator[bytes]:
    """What it writes on standard output, line by line."""
    while line := await process.stdout.readline():
        yield line


async def _last_line(stream: asyncio.StreamReader) -> str:
    last = ""
    while line := await stream.readline():
        last = line.decode(errors="replace").strip() or last
    return last


@dataclass
class HubWatch:
    """Attributes:
    items: begins the feed of the hub at an address.
    show: told whenever there is news.
    """

    items: Callable[[str], AsyncGenerator[Snapshot | FeedLink, None]]
    show: Callable[[StarBoard | FeedLink], None]
    _snapshots: list[Snapshot] = field(default_factory=list)

    async def follow(self, url: str) -> None:
        """Watch until cancelled."""
        model = MonitorModel()
        async with aclosing(self.items(url)) as items:
            async for item in items:
                if isinstance(item, Snapshot):
                    self._snapshots[1:] = [item]
                    self.show(model.take(item))
                else:
                    self.show(item)

    def whole(self) -> StarBoard | None:
        """The hub from the first news of it to the last; None while there was none."""
        model = MonitorModel()
        boards = [model.take(snapshot) for snapshot in self._snapshots]
        return boards[-1] if boards else None
