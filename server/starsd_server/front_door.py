"""The front door: WebSocket connections of targets and monitors, and a few pages over plain HTTP on the same port.

Checks that cost little come first (`gate`). Everything before the WebSocket stands is answered in HTTP: 403 for a
browser, 401 for a wrong token, 503 when the hub is full (a client takes that as "try later"). After that, the reader of
each connection only hands frames to the `ConnectionHandler`; nothing here computes.

Targets that are sent on come in at ports of their own (`dedicated_ports`), by the same checks and with the ticket for
that port. A target without a good ticket gets 410, which sends it back to the main port. There is nothing else at such
a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from starsd_edge.protocol.bundle_offer import OFFER_SUBPROTOCOL
from starsd_edge.protocol.codes import CLOSE_POLICY
from starsd_edge.protocol.hub_side import OwnPort, Refusal
from starsd_edge.protocol.liveness import SILENT_HEARTBEATS, UNSENT_BYTES, Liveness, until_dead
from starsd_edge.protocol.messages import HUB_HEADER, MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.feed import FEED_SUBPROTOCOL
from starsd_server.dedicated_ports import DedicatedPorts, PortLeases
from starsd_server.gate import owner_of, shown_ticket, turn_away, wanted_role
from starsd_server.peer import LiveConnection, Peer
from starsd_server.settings import DoorSettings

log = logging.getLogger(__name__)

_CLOSE_UNSUPPORTED = 1003
"""WebSocket close code (RFC 6455, section 7.4.1) for a text message, where only binary ones are taken."""
_CLOSE_GOING_AWAY = 1001
"""WebSocket close code (RFC 6455, section 7.4.1) for a hub that stops."""
_CLOSE_INTERNAL = 1011
"""WebSocket close code (RFC 6455, section 7.4.1) for a fault of the hub."""
_MAX_UNREAD_FRAMES = 8
"""Frames of one connection that the library buffers before it stops reading from the socket."""
_WRITE_LIMIT = (256 << 10, 64 << 10)
"""Bytes of unsent output above which, and below which again, the library pauses and resumes a connection's writer."""
_BACKLOG = 64
"""TCP connections that may wait to be accepted at the main port: many targets may come back at once."""
_TICKET_BYTES = 32
"""Random bytes of a ticket: 256 bits, which cannot be found by trying."""
_Gate = Callable[[ServerConnection, Request], "Response | None"]


@dataclass(frozen=True)
class Page:
    """An HTTP answer."""

    status: HTTPStatus
    body: str
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class ConnectionHandler(Protocol):
    """Receives connections, frames and page requests from the front door. Called on the event loop; must not block."""

    def connected(self, peer: Peer) -> None:
        """A target has connected."""

    def received(self, peer: Peer, frame: bytes) -> None:
        """A target has sent a message."""

    def disconnected(self, peer: Peer) -> None:
        """The connection of a target has ended."""

    async def watched(self, connection: LiveConnection) -> None:
        """A monitor has connected: send it snapshots until it leaves."""

    @property
    def offers_bundles(self) -> bool:
        """Whether there are bundles to fetch."""

    async def fetching(self, connection: LiveConnection) -> None:
        """A client that fetches bundles has connected: serve it until it leaves."""

    def public_page(self, path: str) -> Page | None:
        """A page for everybody: health, and at / the picture of the star for a browser."""

    def private_page(self, path: str) -> Page | None:
        """A page for holders of the token."""


class FrontDoor:
    """Lets targets in, one task per connection that reads and one that writes."""

    def __init__(
        self, settings: DoorSettings, heartbeat_s: float, handler: ConnectionHandler, clock: Callable[[], float]
    ) -> None:
        """Args:
        heartbeat_s: between WebSocket pings; a peer that nothing comes from within two of them is gone.
        clock: monotonic seconds.
        """
        self._settings = settings
        self._heartbeat_s = heartbeat_s
        self._handler = handler
        self._clock = clock
        self._keys = settings.all_keys
        self._server: Server | None = None
        self._own_ports: DedicatedPorts | None = None
        self._leases = PortLeases(settings.own_ports or range(0), partial(secrets.token_urlsafe, _TICKET_BYTES), clock)
        self._sockets: set[ServerConnection] = set()
        self._admitted: set[ServerConnection] = set()
        self._monitors: set[ServerConnection] = set()
        self._fetching: set[ServerConnection] = set()
        self._at_own_port: dict[ServerConnection, int] = {}
        self._arrivals = 0
        self.auth_failures = 0
        self.turned_away = 0

    async def open(self, sock: socket.socket) -> None:
        """Listen on a bound socket.

        Raises:
            OSError: another process listens there.
            UsageError: no port for targets to be sent on to can be had.
        """
        if self._settings.own_ports is not None:
            self._own_ports = DedicatedPorts(self._leases, sock, self._listen_for_one)
            self._own_ports.check()
        self._server = await self._listen(sock, self._gate, [SUBPROTOCOL, FEED_SUBPROTOCOL, OFFER_SUBPROTOCOL])

    def own_port(self, owner: str) -> OwnPort | Refusal:
        """Hand out a port of its own to a target with this key; only where the settings have such ports."""
        if self._own_ports is None:
            raise AssertionError("this door has no ports to hand out")
        return self._own_ports.hand_out(owner)

    @property
    def own_ports_taken(self) -> int:
        """Ports handed out to targets that are there or on their way."""
        return len(self._leases)

    def expire(self) -> None:
        """Take back what was handed out to targets that did not come."""
        if self._own_ports is not None:
            self._own_ports.expire()

    async def _listen_for_one(self, sock: socket.socket, port: int) -> Server:
        return await self._listen(sock, partial(self._gate_at_own_port, port), [SUBPROTOCOL])

    async def _listen(self, sock: socket.socket, gate: _Gate, subprotocols: Sequence[str]) -> Server:
        server: Server = await serve(
            self._serve,
            sock=sock,
            create_connection=self._counted_connection(),
            process_request=gate,
            subprotocols=[Subprotocol(name) for name in subprotocols],
            compression=None,  # features are noise to it, and inflating is a way to fill memory
            max_size=MAX_FRAME_BYTES,
            max_queue=_MAX_UNREAD_FRAMES,
            write_limit=_WRITE_LIMIT,
            open_timeout=self._settings.open_timeout_s,
            close_timeout=self._settings.close_timeout_s,
            ping_interval=self._heartbeat_s,
            ping_timeout=None,  # what arrives counts, pongs or not: see `Liveness`
            server_header=None,
            backlog=_BACKLOG,
        )
        return server

    async def close(self, code: int = _CLOSE_GOING_AWAY) -> None:
        """Stop listening and part from everybody; peers that do not take part in it are cut off."""
        servers = [] if self._own_ports is None else await self._own_ports.close()
        if self._server is not None:
            servers.append(self._server)
        for server in servers:
            server.close(code=code, reason="the hub is closing")
        if await self._are_closed(servers):
            return
        for connection in list(self._sockets):
            connection.transport.abort()
        await self._are_closed(servers)

    async def _are_closed(self, servers: Sequence[Server]) -> bool:
        """Whether all of these are closed, after waiting for them for a bounded time."""
        closed: Awaitable[object] = asyncio.gather(*(server.wait_closed() for server in servers))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(closed, self._settings.close_timeout_s)
            return True
        return False

    def _counted_connection(self) -> type[LiveConnection]:
        door = self

        class CountedConnection(LiveConnection):
            """Known to the door from the first packet on: the library itself counts only what became a WebSocket."""

            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                silent_s = SILENT_HEARTBEATS * door._heartbeat_s
                self.liveness = Liveness(silent_s, door._settings.send_timeout_s, self.loop.time())

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                door._sockets.add(self)
                if len(door._sockets) > door._settings.max_sockets:
                    door.turned_away += 1
                    self.transport.abort()
                else:
                    _tune(self.transport.get_extra_info("socket"), door._heartbeat_s)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                door._sockets.discard(self)
                door._admitted.discard(self)
                door._monitors.discard(self)
                door._fetching.discard(self)
                door._leave_own_port(self)

        return CountedConnection

    def _gate(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer in HTTP, or let a target in (None)."""
        path = _path(request)
        page = self._handler.public_page(path)
        if page is not None and (path != "/" or "Upgrade" not in request.headers):
            return _respond(connection, page)
        away = self._turn_away(connection, request)
        if away is not None:
            return away
        page = self._handler.private_page(path)
        if page is not None:
            return _respond(connection, page)
        if path != "/":
            return _refuse(connection, HTTPStatus.NOT_FOUND, "see / (WebSocket), /healthz, /readyz, /status, /metrics")
        role = wanted_role(request.headers)
        if role == FEED_SUBPROTOCOL:
            return self._admit(connection, self._monitors, self._settings.max_monitors, "monitors")
        if role == OFFER_SUBPROTOCOL:
            if not self._handler.offers_bundles:
                return _refuse(connection, HTTPStatus.NOT_FOUND, "this hub offers no bundles: start it with --offer")
            return self._admit(connection, self._fetching, self._settings.max_fetching, "downloads")
        return self._admit(connection, self._admitted, self._settings.max_connections, "targets")

    def _admit(
        self, connection: ServerConnection, inside: set[ServerConnection], most: int, whom: str
    ) -> Response | None:
        if len(inside) >= most:
            self.turned_away += 1
            return _refuse(
                connection, HTTPStatus.SERVICE_UNAVAILABLE, f"the hub has all the {whom} it takes: try later"
            )
        inside.add(connection)
        return None

    def _gate_at_own_port(self, port: int, connection: ServerConnection, request: Request) -> Response | None:
        """Answer in HTTP, or let in the one target that this port was handed out to (None)."""
        away = self._turn_away(connection, request)
        if away is not None:
            return away
        if _path(request) != "/":
            return _refuse(connection, HTTPStatus.NOT_FOUND, "a target's own port: all pages are at the main one")
        if self._own_ports is None or not self._own_ports.admits(
            port, owner_of(request.headers, self._keys), shown_ticket(request.headers)
        ):
            self.turned_away += 1
            return _refuse(connection, HTTPStatus.GONE, "no ticket that is good here now: begin at the main port")
        self._admitted.add(connection)
        self._at_own_port[connection] = port
        return None

    def _leave_own_port(self, connection: ServerConnection) -> None:
        port = self._at_own_port.pop(connection, None)
        if port is not None and self._own_ports is not None:
            self._own_ports.give_back(port)

    def _turn_away(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to those who may not come in at any port."""
        away = turn_away(request.headers, self._keys)
        if away is None:
            return None
        response = _refuse(connection, away.status, away.line)
        if away.status is HTTPStatus.UNAUTHORIZED:
            self.auth_failures += 1
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def _serve(self, of_library: ServerConnection) -> None:
        connection = cast("LiveConnection", of_library)
        if connection.subprotocol in (FEED_SUBPROTOCOL, OFFER_SUBPROTOCOL):
            is_monitor = connection.subprotocol == FEED_SUBPROTOCOL
            watch = asyncio.create_task(_cut_when_dead(connection))
            try:
                return await (self._handler.watched if is_monitor else self._handler.fetching)(connection)
            finally:
                watch.cancel()
        self._arrivals += 1
        at_own_port = connection in self._at_own_port
        headers = Headers() if connection.request is None else connection.request.headers
        owner = owner_of(headers, self._keys)
        peer = Peer(connection, self._arrivals, owner, self._settings, self._clock(), at_own_port)
        tasks = [asyncio.create_task(peer.write()), asyncio.create_task(peer.watch())]
        self._handler.connected(peer)
        try:
            await self._read(peer)
        except ConnectionClosed:
            log.info("%s has left", peer.address)
        except Exception:  # it costs this connection; the others go on
            log.exception("a fault of the hub's own while serving %s", peer.address)
            await peer.close(_CLOSE_INTERNAL, "a fault of the hub's own")
        finally:
            self._handler.disconnected(peer)
            for task in tasks:
                task.cancel()
            await peer.close(_CLOSE_GOING_AWAY, "")

    async def _read(self, peer: Peer) -> None:
        """Hand over what it says until it leaves or is told to."""
        try:
            message = await peer.receive(self._settings.hello_timeout_s)
        except asyncio.TimeoutError:
            return await peer.close(CLOSE_POLICY, f"no HELLO within {self._settings.hello_timeout_s:g} s")
        while True:
            if isinstance(message, str):
                return await peer.close(_CLOSE_UNSUPPORTED, "this hub speaks binary messages only")
            if not peer.leaving:
                self._handler.received(peer, message)
            await peer.has_room()
            message = await peer.receive()


async def _cut_when_dead(connection: LiveConnection) -> None:
    await until_dead(connection.liveness, connection.transport)
    connection.transport.abort()


def _tune(sock: socket.socket | None, heartbeat_s: float) -> None:
    """Small frames leave at once, a peer that acknowledges nothing for two heartbeats is gone, and what waits for a
    slow one waits where `Liveness` sees it move.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENT_HEARTBEATS * heartbeat_s))
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _path(request: Request) -> str:
    return request.path.partition("?")[0]


def _refuse(connection: ServerConnection, status: HTTPStatus, line: str) -> Response:
    return connection.respond(status, f"{line}\n")


def _respond(connection: ServerConnection, page: Page) -> Response:
    response = connection.respond(page.status, page.body)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = page.content_type
    response.headers[HUB_HEADER] = SUBPROTOCOL
    response.headers.update(page.headers)
    return response
