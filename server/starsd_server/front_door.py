"""The front door: WebSocket connections of targets and monitors, and a few pages over plain HTTP on the same port.

Cheap checks come first and everything before the WebSocket stands is answered in HTTP: 403 for a browser, 401 for a
wrong token, 503 when the house is full (a client takes that as "try later"). Behind the door the reader of each
connection only hands frames to the `Reception`; nothing here computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from starsd_edge.protocol.codes import CLOSE_POLICY
from starsd_edge.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL
from starsd_edge.telemetry.feed import FEED_SUBPROTOCOL
from starsd_server.peer import Peer
from starsd_server.settings import DoorSettings

log = logging.getLogger(__name__)

_CLOSE_UNSUPPORTED = 1003
_CLOSE_GOING_AWAY = 1001
_CLOSE_INTERNAL = 1011
_MAX_UNREAD_FRAMES = 8
_WRITE_LIMIT = (256 << 10, 64 << 10)
_BACKLOG = 64


@dataclass(frozen=True)
class Page:
    """An HTTP answer."""

    status: HTTPStatus
    body: str
    content_type: str = "text/plain; charset=utf-8"


class Reception(Protocol):
    """What stands behind the door. Called on the event loop; nothing here may block."""

    def connected(self, peer: Peer) -> None:
        """A target has come in."""

    def received(self, peer: Peer, frame: bytes) -> None:
        """It said something."""

    def disconnected(self, peer: Peer) -> None:
        """It is gone."""

    async def watched(self, connection: ServerConnection) -> None:
        """A monitor has come in: show it the hub until it leaves."""

    def public_page(self, path: str) -> Page | None:
        """A page for everybody: health."""

    def private_page(self, path: str) -> Page | None:
        """A page for holders of the token."""


class FrontDoor:
    """Lets targets in, one task per connection that reads and one that writes."""

    def __init__(
        self, settings: DoorSettings, heartbeat_s: float, reception: Reception, clock: Callable[[], float]
    ) -> None:
        """Args:
        heartbeat_s: between WebSocket pings; a peer that does not answer one within as long again is gone.
        clock: monotonic seconds.
        """
        self._settings = settings
        self._heartbeat_s = heartbeat_s
        self._reception = reception
        self._clock = clock
        self._owner = _owner_of(settings.token)
        self._server: Server | None = None
        self._sockets: set[ServerConnection] = set()
        self._admitted: set[ServerConnection] = set()
        self._monitors: set[ServerConnection] = set()
        self._arrivals = 0
        self.peers: set[Peer] = set()
        self.auth_failures = 0
        self.turned_away = 0

    async def open(self, sock: socket.socket) -> None:
        """Listen on a bound socket.

        Raises:
            OSError: somebody else does.
        """
        self._server = await serve(
            self._serve,
            sock=sock,
            create_connection=self._counted_connection(),
            process_request=self._gate,
            subprotocols=[Subprotocol(SUBPROTOCOL), Subprotocol(FEED_SUBPROTOCOL)],
            compression=None,  # features are noise to it, and inflating is a way to fill memory
            max_size=MAX_FRAME_BYTES,
            max_queue=_MAX_UNREAD_FRAMES,
            write_limit=_WRITE_LIMIT,
            open_timeout=self._settings.open_timeout_s,
            close_timeout=self._settings.close_timeout_s,
            ping_interval=self._heartbeat_s,
            ping_timeout=self._heartbeat_s,
            server_header=None,
            backlog=_BACKLOG,
        )

    async def close(self, code: int = _CLOSE_GOING_AWAY) -> None:
        """Stop listening and part from everybody; peers that do not take part in it are cut off."""
        if self._server is None:
            return
        self._server.close(code=code, reason="the hub is closing")
        patience = self._settings.close_timeout_s
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), patience)
            return
        for connection in list(self._sockets):
            connection.transport.abort()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), patience)

    def _counted_connection(self) -> type[ServerConnection]:
        door = self

        class CountedConnection(ServerConnection):
            """Known to the door from the first packet on: the library itself counts only what became a WebSocket."""

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

        return CountedConnection

    def _gate(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer in HTTP, or let a target in (None)."""
        path = request.path.partition("?")[0]
        page = self._reception.public_page(path)
        if page is not None:
            return _respond(connection, page)
        if "Origin" in request.headers:
            return _refuse(connection, HTTPStatus.FORBIDDEN, "no browser is a client of this hub")
        if not self._is_authorised(request):
            self.auth_failures += 1
            response = _refuse(connection, HTTPStatus.UNAUTHORIZED, "give the hub's token: Authorization: Bearer TOKEN")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        page = self._reception.private_page(path)
        if page is not None:
            return _respond(connection, page)
        if path != "/":
            return _refuse(connection, HTTPStatus.NOT_FOUND, "see / (WebSocket), /healthz, /readyz, /status, /metrics")
        if _wants_feed(request):
            return self._admit(connection, self._monitors, self._settings.max_monitors, "monitors")
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

    def _is_authorised(self, request: Request) -> bool:
        if self._settings.token is None:
            return True
        given = request.headers.get_all("Authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        matches = hmac.compare_digest(token.strip().encode(errors="surrogateescape"), self._settings.token.encode())
        return matches and scheme.lower() == "bearer"

    async def _serve(self, connection: ServerConnection) -> None:
        if connection.subprotocol == FEED_SUBPROTOCOL:
            return await self._reception.watched(connection)
        self._arrivals += 1
        peer = Peer(connection, self._arrivals, self._owner, self._settings, self._clock())
        writer = asyncio.create_task(peer.write())
        self.peers.add(peer)
        self._reception.connected(peer)
        try:
            await self._read(peer)
        except ConnectionClosed:
            log.info("%s has left", peer.address)
        except Exception:  # it costs this connection; the others go on
            log.exception("a fault of the hub's own while serving %s", peer.address)
            await peer.close(_CLOSE_INTERNAL, "a fault of the hub's own")
        finally:
            self.peers.discard(peer)
            self._reception.disconnected(peer)
            writer.cancel()
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
                self._reception.received(peer, message)
            message = await peer.receive()


def _tune(sock: socket.socket | None, heartbeat_s: float) -> None:
    """Small frames leave at once, and a peer that acknowledges nothing for two heartbeats is gone."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2000 * heartbeat_s))


def _wants_feed(request: Request) -> bool:
    """Whether this is a monitor. A client that offers both roles is a target: the door prefers that one."""
    offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
    names = {name.strip() for name in offered.split(",")}
    return FEED_SUBPROTOCOL in names and SUBPROTOCOL not in names


def _owner_of(token: str | None) -> str:
    """Name of the key that a connection showed; not the key."""
    return "anyone" if token is None else hashlib.sha256(token.encode()).hexdigest()[:16]


def _refuse(connection: ServerConnection, status: HTTPStatus, line: str) -> Response:
    return connection.respond(status, f"{line}\n")


def _respond(connection: ServerConnection, page: Page) -> Response:
    response = connection.respond(page.status, page.body)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = page.content_type
    return response
