"""One WebSocket to the hub: opened, written to and left within bounded times."""

from __future__ import annotations

import asyncio
from collections import deque

from websockets.asyncio.client import ClientConnection

from starsd_edge.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.hub_opening import CLOSE_TIMEOUT_S, NotOpenedError, open_hub
from starsd_edge.telemetry.rtt import TcpRtt, acknowledge_now, read_tcp_rtt
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_endings import Ending, not_opened
from starsd_jetson.sockets import tune

SEND_TIMEOUT_S = 5.0
"""A hub that reads nothing for this long is cut off; its keepalive would block behind the same full buffer."""
HEARTBEAT_S = 10.0
"""Between pings, and for the pong: a silent link is noticed after two of them at most."""


class HubSocket:
    """A WebSocket that stands. All methods belong to the event loop; those that use it may raise ConnectionClosed."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        tune(connection.transport.get_extra_info("socket"), 2 * HEARTBEAT_S)

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
                ping_timeout=HEARTBEAT_S,
            )
        except NotOpenedError as error:
            return not_opened(address, error)
        return cls(connection)

    async def receive(self) -> bytes | str:
        """The next message."""
        message = await self._connection.recv()
        acknowledge_now(self._connection.transport.get_extra_info("socket"))
        return message

    async def send(self, outbox: deque[bytes], timeout_s: float) -> None:
        """Send what is waiting. A cancelled send leaves half a frame behind, so a blocked one is ended by cutting the
        connection.
        """
        loop = asyncio.get_running_loop()
        while outbox:
            limit = loop.call_later(timeout_s, self.cut)
            try:
                await self._connection.send(outbox.popleft())
            finally:
                limit.cancel()

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
