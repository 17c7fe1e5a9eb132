"""The three ways to watch: once, line by line, and on a whole screen with keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.live import Live

from starsd_edge.telemetry.feed import FeedError, Snapshot
from starsd_edge.telemetry.monitor.board import StarBoard, ViewState, ordered
from starsd_edge.telemetry.monitor.feed_client import FeedLink, Recorder
from starsd_edge.telemetry.monitor.formats import board_json, marks_for, plain_line
from starsd_edge.telemetry.monitor.frame import Screen, Sight, parse_keys, report
from starsd_edge.telemetry.monitor.model import MonitorModel

ONCE_SNAPSHOTS = 3
"""Snapshots taken by --once: two a second come, and a rate needs two that are a second apart."""
_LINE_S = 1.0
_REPLAYED = FeedLink("the recording has ended", is_live=False)
_KEY_BYTES = 256
_NOTHING_CHOSEN = ViewState()


@dataclass(frozen=True)
class Watch:
    """What is watched.

    Attributes:
        title: its name.
        items: begins the feed; one that ends is a recording.
        record: where to keep what comes.
    """

    title: str
    items: Callable[[], AsyncGenerator[Snapshot | FeedLink, None]]
    record: Path | None

    async def feed(self) -> AsyncGenerator[Snapshot | FeedLink, None]:
        """The feed, recorded on its way where that is wanted."""
        with ExitStack() as stack:
            recorder = None if self.record is None else stack.enter_context(Recorder(self.record))
            async with aclosing(self.items()) as items:
                async for item in items:
                    if recorder is not None and isinstance(item, Snapshot):
                        recorder.write(item)
                    yield item


def run_until_told(watching: Coroutine[None, None, None]) -> None:
    """Run it to its end, or until Ctrl-C or SIGTERM; either way nothing is left open.

    Raises:
        SystemExit: it was told to stop; the code says by what.
    """
    told: list[signal.Signals] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(watching)

        def stop(number: signal.Signals) -> None:
            told.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    if told:
        raise SystemExit(128 + told[0])


async def once_only(watch: Watch, as_json: bool, snapshots: int | None, choice: ViewState = _NOTHING_CHOSEN) -> None:
    """Print how things are after so many snapshots; None: at the end of a recording.

    Raises:
        FeedError: there is no hub.
    """
    model = MonitorModel()
    board = StarBoard()
    seen = 0
    async with aclosing(watch.feed()) as feed:
        async for item in feed:
            if isinstance(item, FeedLink):
                if not item.is_live:
                    remedy = "start one with `starsd-edge run-draft`, or give the address of another"
                    raise FeedError(f"{item.text} ({watch.title}): {remedy}")
                continue
            board = model.take(item)
            seen += 1
            if seen == snapshots:
                break
    if as_json:
        print(_json_of(board, choice))
        return
    console = Console(highlight=False)
    sight = Sight(console.width, console.height, marks_for(console.encoding), watch.title, "", is_live=True)
    console.print(report(board, sight, choice))


async def lines(watch: Watch, as_json: bool, choice: ViewState = _NOTHING_CHOSEN) -> None:
    """Print a line a second, until Ctrl-C or the end of the recording."""
    model = MonitorModel()
    printed_at: float | None = None
    async with aclosing(watch.feed()) as feed:
        async for item in feed:
            if isinstance(item, FeedLink):
                print(f"{watch.title}: {item.text}", file=sys.stderr, flush=True)
                continue
            board = model.take(item)
            uptime_s = item.facts.uptime_s
            if printed_at is None or not 0 <= uptime_s - printed_at < _LINE_S:
                printed_at = uptime_s
                print(_json_of(board, choice) if as_json else plain_line(board), flush=True)


def _json_of(board: StarBoard, choice: ViewState) -> str:
    """With the targets that are wanted, in the order that is; the hub's figures are of all."""
    return board_json(replace(board, targets=tuple(ordered(board, choice))))


async def on_screen(watch: Watch, choice: ViewState = _NOTHING_CHOSEN) -> None:
    """Fill the terminal, until q or Ctrl-C."""
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live, _cbreak() as keyboard:
        screen = Screen(
            watch.title,
            marks_for(console.encoding),
            lambda: (console.width, console.height),
            lambda renderable: live.update(renderable, refresh=True),
            choice,
        )
        screen.draw()
        await _run(screen, watch, keyboard)


async def _run(screen: Screen, watch: Watch, keyboard: int | None) -> None:
    """Feed and keys, side by side."""
    loop = asyncio.get_running_loop()
    left = asyncio.Event()

    def on_keys() -> None:
        data = os.read(keyboard or 0, _KEY_BYTES)
        for key in parse_keys(data):
            screen.press(key)
        if screen.choice.quit or not data:
            left.set()

    if keyboard is not None:
        loop.add_reader(keyboard, on_keys)
    loop.add_signal_handler(signal.SIGWINCH, screen.draw)
    feeding = asyncio.create_task(_feed(screen, watch))
    leaving = asyncio.create_task(left.wait())
    try:
        await asyncio.wait({feeding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
            await leaving
    finally:
        if keyboard is not None:
            loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGWINCH)
        leaving.cancel()
        await end_task(feeding)


async def _feed(screen: Screen, watch: Watch) -> None:
    async with aclosing(watch.feed()) as feed:
        async for item in feed:
            screen.take(item)
    screen.take(_REPLAYED)


@contextmanager
def _cbreak() -> Iterator[int | None]:
    """The keyboard, key by key and unseen; as it was at the end. None where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


_INSIST_S = 0.5


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel, and insist: before Python 3.12, `wait_for` swallows a cancellation that meets its result."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_S)
