"""A bad path between a target and its hub: delay, thin lines, stalls, resets, half-closed and corrupted connections.

It copies bytes and knows nothing of WebSockets. Everything belongs to the event loop that started it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

_CHUNK = 4096
_BUFFER = 16384
"""Small, so that a path that stands still soon holds up its sender."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time."""

Direction = Literal["up", "down"]
"""Towards the hub, towards the target."""


@dataclass
class Way:
    """How one direction treats bytes; a test changes it at any time.

    Attributes:
        delay_s: before a chunk goes on.
        bytes_per_s: width of the line; None has no limit.
        flips: one bit of every chunk is turned over.
        spared: so many first bytes of a connection are never turned over: its handshake.
        swallows: what comes is thrown away. Nothing passes on such a connection ever again.
        resets_after: a connection is reset once it has carried so many bytes.
        passed: bytes handed on so far, all connections together.
        flipped: bits turned over so far.
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    flips: bool = False
    spared: int = 1200
    swallows: bool = False
    resets_after: int | None = None
    passed: int = 0
    flipped: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    def stall(self) -> None:
        """Hold bytes back."""
        self._open.clear()

    def heal(self) -> None:
        """Be a good line again."""
        self.delay_s, self.bytes_per_s = 0.0, None
        self.flips, self.swallows, self.resets_after = False, False, None
        self._open.set()

    async def travel(self, size: int) -> None:
        """The time that a chunk takes."""
        await asyncio.sleep(self.delay_s)
        if self.bytes_per_s is not None:
            await asyncio.sleep(size / self.bytes_per_s)
        await self._open.wait()


@dataclass(eq=False)
class _Carrier:
    """One direction of one connection."""

    way: Way
    writer: asyncio.StreamWriter
    carried: int = 0
    dead: bool = False


class Proxy:
    """Use as an asynchronous context manager.

    Args:
        port: of the hub; may be changed for connections to come.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.up = Way()
        self.down = Way()
        self.refuses = False
        """New connections are closed at once."""
        self.connections = 0
        """How many came in so far."""
        self._rng = random.Random(7)
        self._pairs: set[tuple[_Carrier, _Carrier]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """A good path for what still stands and for all that is to come."""
        self.up.heal()
        self.down.heal()
        self.refuses = False

    def reset(self) -> None:
        """RST to both ends of every connection."""
        for pair in list(self._pairs):
            _reset(*pair)

    def half_close(self, direction: Direction) -> None:
        """FIN in this direction of every connection; the other goes on."""
        for up, down in self._pairs:
            carrier = up if direction == "up" else down
            carrier.dead = True
            carrier.writer.write_eof()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            writer.close()
            return
        try:
            hub_reader, hub_writer = await self._dial()
        except OSError:
            writer.close()
            return
        pair = (_Carrier(self.up, hub_writer), _Carrier(self.down, writer))
        self._pairs.add(pair)
        pumps = [
            asyncio.ensure_future(self._pump(reader, pair, 0)),
            asyncio.ensure_future(self._pump(hub_reader, pair, 1)),
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps)
        self._tasks.difference_update(pumps)
        self._pairs.discard(pair)
        writer.close()
        hub_writer.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.upstream))
        except OSError:
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock, limit=_BUFFER)

    async def _pump(self, reader: asyncio.StreamReader, pair: tuple[_Carrier, _Carrier], index: int) -> None:
        carrier = pair[index]
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await carrier.way.travel(len(chunk))
                self._carry(bytearray(chunk), carrier)
                if carrier.way.resets_after is not None and carrier.carried > carrier.way.resets_after:
                    _reset(*pair)
                await carrier.writer.drain()
            if carrier.writer.can_write_eof() and not carrier.dead:
                carrier.writer.write_eof()

    def _carry(self, chunk: bytearray, carrier: _Carrier) -> None:
        way = carrier.way
        carrier.dead = carrier.dead or way.swallows
        if carrier.dead or carrier.writer.is_closing():
            return
        if way.flips and carrier.carried >= way.spared:
            chunk[self._rng.randrange(len(chunk))] ^= 1 << self._rng.randrange(8)
            way.flipped += 1
        carrier.writer.write(chunk)
        carrier.carried += len(chunk)
        way.passed += len(chunk)


def _reset(*carriers: _Carrier) -> None:
    for carrier in carriers:
        sock: socket.socket = carrier.writer.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        carrier.writer.transport.abort()
