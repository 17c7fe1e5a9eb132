"""`starsd-edge monitor`: a live view of a hub and its targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import TokenFile
from starsd_edge.errors import UsageError, require_one_of

if TYPE_CHECKING:
    from starsd_edge.telemetry.monitor.feed_client import FeedClient
SORTS = ("name", "rtt", "queue-wait", "acceptance", "tokens", "drafting")
"""Names of the orders of the board, in its order."""


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """The options of the command."""

    hub: Annotated[str, typer.Argument(help="The hub to watch; the default port is 8317.")] = "ws://127.0.0.1:8317"
    token_file: TokenFile = None
    once: Annotated[bool, typer.Option(help="Show it once, and leave.")] = False
    json: Annotated[bool, typer.Option(help="JSON: one object, or one a second without --once.")] = False
    plain: Annotated[bool, typer.Option(help="One line a second, as where there is no terminal.")] = False
    record: Annotated[Path | None, typer.Option(help="Write what the hub sends to this file.")] = None
    replay: Annotated[Path | None, typer.Option(help="Show a recorded file instead of a hub.")] = None
    sort: Annotated[
        str, typer.Option(metavar="|".join(SORTS), help="Order of the targets, the worst first; a key changes it.")
    ] = SORTS[0]
    filter: Annotated[
        str,
        typer.Option(help="Only targets with these letters in name, state, drafter or address.", show_default=False),
    ] = ""
    speed: Annotated[float, typer.Option(min=0.1, max=1000, help="Factor on the speed of --replay.")] = 1.0

    def __post_init__(self) -> None:
        if self.replay is not None and self.record is not None:
            raise UsageError("--replay shows a file: leave out --record")
        require_one_of("order", "--sort", self.sort, SORTS)


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "monitor", monitor, MonitorOptions)


def monitor(options: MonitorOptions) -> None:
    """Watch a hub: its load, every target's link, drafts and speed, and why drafting is off where it is."""
    import asyncio
    import sys

    from rich.console import Console

    from starsd_edge.cli.monitor.modes import ONCE_SNAPSHOTS, Watch, lines, on_screen, once_only, run_until_told
    from starsd_edge.cli.streams import shows_panels
    from starsd_edge.running import listed
    from starsd_edge.telemetry.monitor.board import ViewState
    from starsd_edge.telemetry.monitor.feed_client import replay as replayed

    if options.replay is None:
        client = feed_client(options.hub, options.token_file)
        watch = Watch(client.url, client.items, options.record)
    else:
        path, sleep = options.replay, _no_sleep if options.once else asyncio.sleep
        watch = Watch(path.name, lambda: replayed(path, options.speed, sleep), None)
    choice = ViewState(sort=SORTS.index(options.sort), wanted=options.filter)
    with listed("monitor", hub=options.hub if options.replay is None else None):
        if options.once:
            snapshots = ONCE_SNAPSHOTS if options.replay is None else None
            run_until_told(once_only(watch, options.json, snapshots, choice))
        elif options.json or options.plain or not shows_panels(Console(file=sys.stdout)):
            run_until_told(lines(watch, options.json, choice))
        else:
            run_until_told(on_screen(watch, choice))


async def _no_sleep(seconds: float) -> None:
    """What is shown once is shown at once."""


def feed_client(hub: str, token_file: Path | None) -> FeedClient:
    """What reads the feed of the hub at this address."""
    import random
    import time

    from starsd_edge.telemetry.monitor.feed_client import FeedClient
    from starsd_jetson.api import hub_address
    from starsd_jetson.hub_endings import Backoff

    address = hub_address(hub, token_file)
    return FeedClient(address.url, address.headers, Backoff(random.random), time.monotonic)
