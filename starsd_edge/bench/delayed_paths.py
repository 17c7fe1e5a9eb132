"""Modelled network paths in this process: a relay to a hub that hands on each chunk of bytes when it would arrive.

It copies bytes between sockets and knows nothing of WebSockets. One event loop on one thread serves all paths; it
sleeps until the next chunk is due. The kernel's own round-trip times at both ends are those of the loopback and do not
see these delays; durations that the ends measure do.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import threading
from collections import deque
from typing import cast

from starsd_edge.bench.device_times import Line, LinkTimes
from starsd_edge.errors import StarsdError

_HOST = "127.0.0.1"
_MOST_IN_FLIGHT = 1 << 22
"""Most bytes on one line. Beyond it nothing more is read from the sender, since a real path's buffers would be full."""
_THREAD_TIMEOUT_S = 5.0
"""Seconds to wait for the relay's own thread, which answers at once unless it hangs."""


class _PreciseSelector(selectors.EpollSelector):
    """An epoll whose timeouts are kept to the microsecond, where Python's own rounds them up to milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector`: the epoll is itself a file that `select` can wait for."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


class DelayedPaths:
    """Use as a context manager; paths end with it."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(_PreciseSelector())
        self._servers: list[asyncio.Server] = []
        self._transports: set[asyncio.Transport] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delayed-paths", daemon=True)

    def __enter__(self) -> DelayedPaths:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_THREAD_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_THREAD_TIMEOUT_S)
        self._loop.close()

    def open(self, port: int, link: LinkTimes) -> int:
        """A port of this machine whose connections lead over such a path to that port of it. Every connection has a
        line of its own in each direction.

        Raises:
            StarsdError: it cannot listen.
        """
        return asyncio.run_coroutine_threadsafe(self._listen(port, link), self._loop).result(_THREAD_TIMEOUT_S)

    async def _listen(self, port: int, link: LinkTimes) -> int:
        def accept() -> _Relay:
            near, far = _Relay(Line(link), self._transports), _Relay(Line(link), self._transports)
            near.other, far.other = far, near
            near.port = port
            return near

        try:
            server = await self._loop.create_server(accept, _HOST, 0)
        except OSError as error:
            raise StarsdError(f"a modelled path cannot listen: {error.strerror}") from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for transport in list(self._transports):
            transport.abort()
        while self._transports:
            await asyncio.sleep(0)


class _Relay(asyncio.Protocol):
    """One end of a connection: what comes in goes onto its line, and out at the other end.

    Attributes:
        other: the other end.
        port: port that the other end is to be connected to; None at that other end.
    """

    other: _Relay
    port: int | None = None

    def __init__(self, line: Line, transports: set[asyncio.Transport]) -> None:
        self._line = line
        self._transports = transports
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._on_line: deque[bytes | None] = deque()
        """Chunks, and None for the end of the connection: the loop runs timers of one moment in any order."""
        self._in_flight = 0
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transports.add(self._transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.port is not None:
            self._dialling = asyncio.ensure_future(self._dial(self._transport, self.port))
        for chunk in self._waiting:
            self._transport.write(chunk)
        self._waiting.clear()
        if self._ended:
            self._transport.close()

    async def _dial(self, transport: asyncio.Transport, port: int) -> None:
        try:
            await self._loop.create_connection(lambda: self.other, _HOST, port)
        except OSError:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._in_flight += len(data)
        if self._in_flight > _MOST_IN_FLIGHT and self._transport is not None:
            self._transport.pause_reading()
        self._put_on_line(data)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`: the other end learns of it when all that came before has arrived."""
        if self._transport is not None:
            self._transports.discard(self._transport)
        self._put_on_line(None)

    def end(self) -> None:
        """The other end is gone."""
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    def take(self, chunk: bytes) -> None:
        """Send what has arrived at this end."""
        if self._transport is None:
            self._waiting.append(chunk)
        else:
            self._transport.write(chunk)

    def _put_on_line(self, chunk: bytes | None) -> None:
        self._on_line.append(chunk)
        self._loop.call_at(self._line.arrival_s(self._loop.time(), len(chunk or b"")), self._arrive)

    def _arrive(self) -> None:
        """The chunk that was put on the line first has arrived at the other end."""
        chunk = self._on_line.popleft()
        if chunk is None:
            self.other.end()
            return
        full = self._in_flight > _MOST_IN_FLIGHT
        self._in_flight -= len(chunk)
        if full and self._in_flight <= _MOST_IN_FLIGHT and self._transport and not self._transport.is_closing():
            self._transport.resume_reading()
        self.other.take(chunk)
