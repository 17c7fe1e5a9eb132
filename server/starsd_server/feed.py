"""The monitor's feed: every watcher gets the newest snapshot, and no watcher can slow the hub.

A snapshot is made once for all watchers, and only while there is one. Each watcher has room for one snapshot: a newer
one replaces one that was not sent yet. A watcher that takes nothing in is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from websockets.exceptions import ConnectionClosed

from starsd_edge.protocol.codes import CLOSE_POLICY
from starsd_edge.telemetry.feed import FEED_VERSION, Event, Snapshot, encode_snapshot
from starsd_edge.telemetry.hub_facts import HubFacts
from starsd_server.peer import LiveConnection

log = logging.getLogger(__name__)

SNAPSHOT_S = 0.5
"""Seconds between snapshots: people cannot follow faster ones."""


class MonitorFeed:
    """The watchers of one hub. All methods belong to the event loop.

    Args:
        facts: what is true now.
        events: the last events.
    """

    def __init__(self, facts: Callable[[], HubFacts], events: Callable[[], list[Event]]) -> None:
        self._facts = facts
        self._events = events
        self._watchers: set[_Watcher] = set()
        self._publisher: asyncio.Task[None] | None = None

    async def serve(self, connection: LiveConnection) -> None:
        """Send snapshots until the watcher leaves, or says something: it is here to listen."""
        watcher = _Watcher(connection)
        self._watchers.add(watcher)
        if self._publisher is None:
            self._publisher = asyncio.create_task(self._publish())
        writer = asyncio.create_task(watcher.write())
        try:
            await connection.recv()
            await connection.close(CLOSE_POLICY, "a monitor only listens")
        except ConnectionClosed:
            pass
        finally:
            self._watchers.discard(watcher)
            writer.cancel()
            if not self._watchers and self._publisher is not None:
                self._publisher.cancel()
                self._publisher = None

    def snapshot(self) -> bytes:
        """What is true now, as a line of the feed."""
        return encode_snapshot(Snapshot(FEED_VERSION, self._facts(), self._events()))

    async def _publish(self) -> None:
        while True:
            try:
                line = self.snapshot()
            except Exception:  # costs the watchers one snapshot; targets do not depend on it
                log.exception("a fault of the hub's own while making a snapshot for the monitor")
            else:
                for watcher in self._watchers:
                    watcher.offer(line)
            await asyncio.sleep(SNAPSHOT_S)


class _Watcher:
    def __init__(self, connection: LiveConnection) -> None:
        self._connection = connection
        self._newest: bytes | None = None
        self._offered = asyncio.Event()

    def offer(self, line: bytes) -> None:
        """Send this next, instead of what was not sent yet."""
        self._newest = line
        self._offered.set()

    async def write(self) -> None:
        """Send what is offered, until the end of the connection."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._offered.wait()
                self._offered.clear()
                line, self._newest = self._newest, None
                if line is not None:
                    await self._connection.send(line, text=True)
                    self._connection.liveness.left(asyncio.get_running_loop().time())
