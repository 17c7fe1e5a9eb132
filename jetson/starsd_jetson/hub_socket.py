"""One WebSocket to the hub: opened, written to and left within bounded times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from websockets.asyncio.client import ClientConnection

from starsd_edge.protocol.liveness import SILENT_HEARTBEATS, UNSENT_BYTES, Liveness, until_dead
from starsd_edge.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.hub_opening import CLOSE_TIMEOUT_S, NotOpenedError, open_hub
from starsd_edge.telemetry.rtt import TcpRtt, acknowledge_now, read_tcp_rtt
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_endings import Ending, not_opened


class TcpOptions(Protocol):
    """The one method of a socket that is needed here."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """As `socket.socket.setsockopt`."""


def tune(sock: TcpOptions | None, give_up_s: float) -> None:
    """Send small frames at once, let the kernel end a connection whose data stays unacknowledged for this long, and
    keep it from taking in much more than it can send.

    Without the second, a link that a middlebox has dropped in silence looks open until the kernel's own limit, a
    quarter of an hour; without the third, a slow link that works looks stuck for as long as a megabyte takes.
    """
    if sock is None:
        return
    with contextlib.suppress(OSError):  # a socket that is not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


HEARTBEAT_S = 10.0
"""Seconds between pings. The connection is cut once nothing has come from the hub, or it has taken nothing in, for two
such intervals. The hub sends pings as well, so something comes from a live hub even while our own pings wait behind
rows.
"""

log = logging.getLogger(__name__)


class HubSocket:
    """A WebSocket that stands. All methods belong to the event loop; those that use it may raise ConnectionClosed."""

    def __init__(self, connection: LiveConnection) -> None:
        self._connection = connection
        self.written = 0
        """Bytes of messages sent."""
        tune(connection.transport.get_extra_info("socket"), SILENT_HEARTBEATS * HEARTBEAT_S)

    @classmethod
    async def open(cls, address: HubAddress) -> HubSocket | Ending:
        """Connect, or say why that was not possible."""
        try:
            connection = await open_hub(
                address.url,
                address.headers,
                SUBPROTOCOL,
                max_size=MAX_FRAME_BYTES,
                ping_interval=HEARTBEAT_S,
                ping_timeout=None,  # what arrives counts, pongs or not: see `watch`
                create_connection=LiveConnection,
            )
        except NotOpenedError as error:
            return not_opened(address, error)
        return cls(cast("LiveConnection", connection))

    async def receive(self) -> bytes | str:
        """The next message."""
        message = await self._connection.recv()
        acknowledge_now(self._connection.transport.get_extra_info("socket"))
        return message

    async def send_next(self, outbox: deque[bytes]) -> None:
        """Send the first that is waiting, if any. A cancelled send leaves half a frame behind, so a blocked one is
        ended by cutting the connection, which `watch` does.
        """
        if outbox:
            frame = outbox.popleft()
            await self._connection.send(frame)
            self._connection.liveness.left(asyncio.get_running_loop().time())
            self.written += len(frame)

    async def send_last(self, outbox: deque[bytes]) -> None:
        """Send the messages that still wait before the connection is closed, for at most `CLOSE_TIMEOUT_S` seconds."""
        limit = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.cut)
        try:
            while outbox:
                await self.send_next(outbox)
        finally:
            limit.cancel()

    async def mark(self, arrived: Callable[[], None]) -> None:
        """Send a ping behind what was sent; `arrived` is called once the hub has answered it."""

        def answered(pong: asyncio.Future[float]) -> None:
            if not pong.cancelled() and pong.exception() is None:
                arrived()

        asyncio.ensure_future(await self._connection.ping()).add_done_callback(answered)

    async def watch(self) -> None:
        """Cut the connection once it is dead."""
        why = await until_dead(self._connection.liveness, self._connection.transport)
        log.debug("the hub is cut off: %s", why)
        self.cut()

    async def close(self) -> None:
        """Part from the hub, even from one that reads nothing any more."""
        limit = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.cut)
        try:
            await self._connection.close()
        finally:
            limit.cancel()

    def cut(self) -> None:
        """End the connection at once."""
        self._connection.transport.abort()

    def rtt(self) -> TcpRtt | None:
        """What the kernel measures; None where it does not tell."""
        sock = self._connection.transport.get_extra_info("socket")
        return read_tcp_rtt(sock) if sock is not None else None


class LiveConnection(ClientConnection):
    """One that notes when something arrives."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        limit_s = SILENT_HEARTBEATS * HEARTBEAT_S
        self.liveness = Liveness(limit_s, limit_s, self.loop.time())

    def data_received(self, data: bytes) -> None:
        self.liveness.arrived(self.loop.time())
        super().data_received(data)
