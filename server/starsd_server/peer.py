"""One target's WebSocket as the hub sees it: `Q_out` and one writer.

Sending never waits: a frame goes into `Q_out`, and one task writes. What bounds `Q_out` is that the hub reads nothing
more from a target while a window of frames waits there; beyond it come only drafts that were asked for before, a few
for each session. So a target that reads may send as fast as it likes, and one that reads nothing is closed when what
waits for it has not moved for `send_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from starsd_edge.protocol.codes import CLOSE_STUCK
from starsd_edge.protocol.liveness import Liveness, until_dead
from starsd_edge.telemetry.rtt import TcpRtt, acknowledge_now, read_tcp_rtt
from starsd_server.settings import DoorSettings

log = logging.getLogger(__name__)


MOST_UNSENT = 8 << 20
"""Most bytes that may wait in a connection's write buffer. Messages are written one by one, each when the last has
left, and none is nearly as large: only answers to pings can add up to this.
"""


class LiveConnection(ServerConnection):
    """A WebSocket at the hub that notes when something arrives."""

    liveness: Liveness

    @property
    def shown_address(self) -> str:
        """Where it comes from."""
        address = self.remote_address
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"

    def data_received(self, data: bytes) -> None:
        self.liveness.arrived(self.loop.time())
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MOST_UNSENT:
            log.warning("cutting off a peer that sends pings and reads nothing")
            self.transport.abort()


@dataclass(frozen=True)
class _Goodbye:
    code: int
    reason: str


@dataclass
class PeerTraffic:
    """What went over one connection.

    Attributes:
        bytes_in: bytes of messages from the target.
        bytes_out: bytes of messages to the target.
        rtt: what the kernel measures, when it was last asked.
    """

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rtt: TcpRtt | None = None


class Peer:
    """A connected target. All methods belong to the event loop."""

    def __init__(
        self,
        connection: LiveConnection,
        number: int,
        owner: str,
        settings: DoorSettings,
        connected_at: float,
        at_own_port: bool = False,
    ) -> None:
        self.number = number
        """Number of the connection, unique while the hub runs."""
        self.owner = owner
        self.connected_at = connected_at
        self.at_own_port = at_own_port
        """Whether the target is connected to a port of its own, to which the hub has sent it on."""
        self.traffic = PeerTraffic()
        self.leaving = False
        """Whether the hub has said goodbye: messages that still come from the target do not count."""
        self._connection = connection
        self._settings = settings
        self._waiting: asyncio.Queue[bytes | _Goodbye] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._written_out = False
        """Whether the writer has ended: nothing is sent any more."""

    @property
    def address(self) -> str:
        """Where it connects from."""
        return self._connection.shown_address

    @property
    def host(self) -> str:
        """The host that it connects from, without the port, which changes with every connection."""
        address = self._connection.remote_address
        return str(address[0]) if isinstance(address, tuple) else "unknown"

    @property
    def port(self) -> int:
        """The hub's port that it is connected to."""
        address = self._connection.local_address
        return int(address[1]) if isinstance(address, tuple) else 0

    @property
    def is_behind(self) -> bool:
        """Whether frames wait in `Q_out`."""
        return not self._waiting.empty()

    def send(self, frame: bytes) -> None:
        """Put a frame into `Q_out`."""
        self._put(frame)

    async def has_room(self) -> None:
        """Wait while the window of frames that it has not taken is full."""
        await self._room.wait()

    async def watch(self) -> None:
        """Close the connection once it is dead."""
        why = await until_dead(self._connection.liveness, self._connection.transport)
        log.warning("closing the connection to %s: %s", self.address, why)
        self.leaving = True
        await self.close(CLOSE_STUCK, why)

    def hang_up(self, code: int, reason: str) -> None:
        """Close with this WebSocket close code once everything before is sent."""
        self.leaving = True
        self._put(_Goodbye(code, reason))

    def cut(self, why: str) -> None:
        """End the connection at once, without a closing handshake."""
        self.leaving = True
        log.warning("cutting off %s: %s", self.address, why)
        self._connection.transport.abort()

    def sample_rtt(self) -> None:
        """Ask the kernel for this connection's round-trip time."""
        sock: socket.socket | None = self._connection.transport.get_extra_info("socket")
        if sock is not None:
            self.traffic.rtt = read_tcp_rtt(sock) or self.traffic.rtt

    async def receive(self, timeout_s: float | None = None) -> bytes | str:
        """The next message.

        Raises:
            ConnectionClosed: there will be none.
            asyncio.TimeoutError: none came within `timeout_s` seconds.
        """
        message = await asyncio.wait_for(self._connection.recv(), timeout_s)
        acknowledge_now(self._connection.transport.get_extra_info("socket"))
        self.traffic.frames_in += 1
        self.traffic.bytes_in += len(message)
        return message

    async def write(self) -> None:
        """Write what is in `Q_out`, until goodbye or the end of the connection."""
        try:
            while True:
                item = await self._waiting.get()
                if isinstance(item, _Goodbye):
                    await self.close(item.code, item.reason)
                    return
                await self._connection.send(item)
                self._connection.liveness.left(asyncio.get_running_loop().time())
                self.traffic.frames_out += 1
                self.traffic.bytes_out += len(item)
                if self._waiting.qsize() < self._settings.max_waiting_frames:
                    self._room.set()
        except ConnectionClosed:
            return
        finally:
            self._written_out = True
            self._room.set()  # the reader finds out why

    async def close(self, code: int, reason: str) -> None:
        """Close; a peer that does not take part in it is cut off."""
        with self._deadline(self._settings.close_timeout_s):
            await self._connection.close(code, reason)

    def _put(self, item: bytes | _Goodbye) -> None:
        if self._written_out:
            return
        self._waiting.put_nowait(item)
        if self._waiting.qsize() >= self._settings.max_waiting_frames:
            self._room.clear()

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Cut the peer off if what is done inside takes longer: a cancelled write would leave half a frame behind."""
        timer = asyncio.get_running_loop().call_later(seconds, self.cut, f"it took nothing in for {seconds:g} s")
        try:
            yield
        finally:
            timer.cancel()
