"""One WebSocket to the hub: opened, written to and left within bounded times."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.rtt import TcpRtt, acknowledge_now, read_tcp_rtt
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_endings import Ending, after_http_status, describe, unreachable
from starsd_jetson.sockets import tune

OPEN_TIMEOUT_S = 5.0
"""From the first packet to the WebSocket."""
SEND_TIMEOUT_S = 5.0
"""A hub that reads nothing for this long is cut off; its keepalive would block behind the same full buffer."""
HEARTBEAT_S = 10.0
"""Between pings, and for the pong: a silent link is noticed after two of them at most."""
CLOSE_TIMEOUT_S = 1.0

_library_log = logging.getLogger("starsd_jetson.websockets")
_library_log.propagate = False  # at its debug level it writes out frames, and with them tags and tokens
_library_log.addHandler(logging.NullHandler())


class HubSocket:
    """A WebSocket that stands. All methods belong to the event loop; those that use it may raise ConnectionClosed."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        tune(connection.transport.get_extra_info("socket"), 2 * HEARTBEAT_S)

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


async def _connect(address: HubAddress) -> ClientConnection:
    return await connect(
        address.url,
        additional_headers=address.headers,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        proxy=None,  # a proxy in the environment is not meant for the star
        compression=None,  # features are noise to it
        max_size=MAX_FRAME_BYTES,
        open_timeout=OPEN_TIMEOUT_S,
        close_timeout=CLOSE_TIMEOUT_S,
        ping_interval=HEARTBEAT_S,
        ping_timeout=HEARTBEAT_S,
        logger=_library_log,
    )
