"""The monitor's connection to a hub: the feed where it can be had, else `/metrics`; reconnects by itself."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection

from starsd_edge.errors import UsageError
from starsd_edge.telemetry.feed import (
    FEED_SUBPROTOCOL,
    MAX_SNAPSHOT_BYTES,
    FeedError,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from starsd_edge.telemetry.hub_opening import (
    CLOSE_TIMEOUT_S,
    LOOPBACK_ONLY,
    MISDIRECTED,
    NOT_LET_IN,
    OPEN_TIMEOUT_S,
    NotOpenedError,
    describe,
    http_answer,
    is_redirect,
    open_hub,
    token_remedy,
)
from starsd_edge.telemetry.monitor.metrics_page import read_metrics

_SILENCE_S = 10.0
"""Seconds without a snapshot after which a feed is given up: it sends two a second."""
_POLL_S = 1.0
_POLLS = 30
"""Times that `/metrics` is read before the feed is tried again."""
_OK = 200


@dataclass(frozen=True)
class FeedLink:
    """How the monitor is connected.

    Attributes:
        text: for people.
        is_live: news come.
    """

    text: str
    is_live: bool


LIVE = FeedLink("live", is_live=True)
FALLBACK = FeedLink("/metrics only: the hub gives no feed", is_live=True)


class Delays(Protocol):
    """When to try again."""

    def served(self, seconds: float) -> None:
        """The hub served for this long before the connection ended."""

    def next_delay_s(self) -> float:
        """Seconds until the next attempt."""


class FeedClient:
    """Watches one hub.

    Args:
        url: ws:// or wss://.
        headers: of the handshake; the token is in one of them.
        delays: between attempts.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        delays: Delays,
        clock: Callable[[], float],
    ) -> None:
        self.url = url
        self._headers = dict(headers)
        self._delays = delays
        self._clock = clock
        self._started_at = clock()
        self._was_let_in = False

    async def items(self) -> AsyncGenerator[Snapshot | FeedLink, None]:
        """Snapshots, and a `FeedLink` whenever that changes; endless.

        Raises:
            FeedError: the hub does not let this monitor in, and never did.
        """
        while True:
            began = self._clock()
            try:
                async with aclosing(self._watch()) as items:
                    async for item in items:
                        self._was_let_in = True
                        yield item
            except Exception as error:  # whatever the other end does, it may be a hub again next time
                if isinstance(error, _NotLetInError) and not self._was_let_in:
                    raise
                yield FeedLink(f"no hub: {self._reason(error)}", is_live=False)
            self._delays.served(self._clock() - began)
            await asyncio.sleep(self._delays.next_delay_s())

    async def _watch(self) -> AsyncGenerator[Snapshot | FeedLink, None]:
        """One connection, from its beginning to its end."""
        try:
            connection = await self._open()
        except NotOpenedError as error:
            if error.status is None or is_redirect(error.status):
                raise
            self._check_let_in(error.status)
            async with aclosing(self._poll()) as items:
                async for item in items:
                    yield item
            return
        try:
            yield LIVE
            while True:
                yield decode_snapshot(await asyncio.wait_for(connection.recv(), _SILENCE_S))
        finally:
            await self._close(connection)

    async def _open(self) -> ClientConnection:
        return await open_hub(
            self.url,
            self._headers,
            FEED_SUBPROTOCOL,
            max_size=MAX_SNAPSHOT_BYTES,
            max_queue=1,  # old snapshots are of no use: better the hub keeps them back
        )

    async def _close(self, connection: ClientConnection) -> None:
        """A hub that does not take part in it is left anyhow."""
        try:
            await asyncio.wait_for(connection.close(), CLOSE_TIMEOUT_S)
        except asyncio.TimeoutError:
            connection.transport.abort()

    async def _poll(self) -> AsyncGenerator[Snapshot | FeedLink, None]:
        """What `/metrics` shows, once a second for a while."""
        for poll in range(_POLLS):
            page = await asyncio.to_thread(self._get_metrics)
            snapshot = read_metrics(page, self._clock() - self._started_at)
            if poll == 0:
                yield FALLBACK
            yield snapshot
            await asyncio.sleep(_POLL_S)

    def _get_metrics(self) -> str:
        """The page, fetched on a thread."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=OPEN_TIMEOUT_S, context=ssl.create_default_context())
            if parts.scheme == "wss"
            else http.client.HTTPConnection(host, parts.port, timeout=OPEN_TIMEOUT_S)
        )
        try:
            connection.request("GET", "/metrics", headers=self._headers)
            response = connection.getresponse()
            body = response.read(MAX_SNAPSHOT_BYTES)
        finally:
            connection.close()
        self._check_let_in(response.status)
        if response.status != _OK:
            raise FeedError(http_answer(self.url, response.status, response.getheader("Location")))
        return body.decode(errors="replace")

    def _check_let_in(self, status: int) -> None:
        if status in NOT_LET_IN or status == MISDIRECTED:
            reason = LOOPBACK_ONLY if status == MISDIRECTED else token_remedy(bool(self._headers))
            raise _NotLetInError(f"the hub {self.url} does not let this monitor in (HTTP {status}): {reason}")

    def _reason(self, error: Exception) -> str:
        return str(error) if isinstance(error, (FeedError, NotOpenedError)) else describe(error, self.url)


class _NotLetInError(FeedError):
    """Trying again would not help."""


LONGEST_PAUSE_S = 5.0
"""Longest pause in seconds between two snapshots of a replay: a night in between is cut short."""


class Recorder:
    """Writes snapshots. A context manager.

    Raises:
        UsageError: the file is there already, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("xb")
        except FileExistsError:
            raise UsageError(f"{path} is there already: choose another file for --record") from None
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}") from None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, snapshot: Snapshot) -> None:
        """Append one; it is in the file when this returns."""
        self._file.write(encode_snapshot(snapshot) + b"\n")
        self._file.flush()


async def replay(path: Path, speed: float, sleep: Callable[[float], Awaitable[None]]) -> AsyncGenerator[Snapshot, None]:
    """The snapshots of a file, as far apart as they were, divided by `speed`.

    Raises:
        UsageError: the file cannot be read, or a line of it is no snapshot; names the line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot replay {path}: {error.strerror}") from None
    with file:
        before: float | None = None
        number = 0
        while line := file.readline(MAX_SNAPSHOT_BYTES + 2):
            number += 1
            snapshot = _read(path, number, line)
            if before is not None:
                await sleep(min(max(0.0, snapshot.facts.uptime_s - before), LONGEST_PAUSE_S) / speed)
            before = snapshot.facts.uptime_s
            yield snapshot
        if before is None:
            raise UsageError(f"{path} is empty: record a feed with --record")


def _read(path: Path, number: int, line: bytes) -> Snapshot:
    try:
        return decode_snapshot(line.rstrip(b"\r\n"))
    except FeedError as error:
        raise UsageError(f"line {number} of {path}: {error}") from None
