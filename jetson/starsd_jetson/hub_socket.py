"""One WebSocket to the hub: opened, written to and left within bounded times."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.protocol.liveness import SILENT_HEARTBEATS, Liveness, until_dead
from starsd_edge.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.rtt import TcpRtt, acknowledge_now, read_tcp_rtt
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_endings import Ending, after_http_status, describe, unreachable
from starsd_jetson.sockets import tune

OPEN_TIMEOUT_S = 5.0
"""From the first packet to the WebSocket."""
HEARTBEAT_S = 10.0
"""Between pings: a hub that nothing comes from, or that takes nothing in, for two of them is cut off. The hub pings as
well, so something comes from a live one even while our own pings wait behind rows.
"""
CLOSE_TIMEOUT_S = 1.0

_library_log = logging.getLogger("starsd_jetson.websockets")
_library_log.propagate = False  # at its debug level it writes out frames, and with them tags and tokens
_library_log.addHandler(logging.NullHandler())


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
            connection = await _connect(address)
        except InvalidStatus as error:
            return after_http_status(address, error.response.status_code)
        except InvalidHandshake as error:
            return Ending(unreachable(address, f"what listens there is no hub: {error}"))
        except (OSError, asyncio.TimeoutError) as error:
            return Ending(unreachable(address, describe(error)))
        if connection.subprotocol != SUBPROTOCOL:
            connection.transport.abort()
            return Ending(unreachable(address, "what listens there is no hub"))
        return cls(connection)

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
        """Send what is waiting before a parting, which waits for nobody."""
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
        _library_log.info("the hub is cut off: %s", why)
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


async def _connect(address: HubAddress) -> LiveConnection:
    connection = await connect(
        address.url,
        create_connection=LiveConnection,
        additional_headers=address.headers,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        proxy=None,  # a proxy in the environment is not meant for the star
        compression=None,  # features are noise to it
        max_size=MAX_FRAME_BYTES,
        open_timeout=OPEN_TIMEOUT_S,
        close_timeout=CLOSE_TIMEOUT_S,
        ping_interval=HEARTBEAT_S,
        ping_timeout=None,  # what arrives counts, pongs or not: see `watch`
        logger=_library_log,
    )
    return cast("LiveConnection", connection)
