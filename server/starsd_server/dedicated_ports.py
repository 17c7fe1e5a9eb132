"""Ports of their own for targets: which target holds which port, the tickets that let it in, and a listener for each
lease, which lives no longer than the lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from websockets.asyncio.server import Server

from starsd_edge.errors import UsageError
from starsd_edge.listening import is_same_secret
from starsd_edge.protocol.codes import BUSY
from starsd_edge.protocol.hub_side import OwnPort, Refusal
from starsd_server.binding import listen_beside

TICKET_VALID_S = 5.0
"""Seconds from WELCOME in which a ticket must be shown at the target's own port: enough for two round trips and a TCP
handshake on a bad link.
"""


@dataclass
class _Lease:
    owner: str
    ticket: str | None = field(repr=False)
    """The ticket that lets the target in; None once it was used."""
    since: float


class PortLeases:
    """The leases of one hub: which targets hold which ports of their own.

    A lease begins with a ticket that is good once, for its owner, at its port, for `TICKET_VALID_S` seconds. It ends
    when its target leaves, or after those seconds if the target did not come. Pure: no sockets, time and tickets come
    from outside.

    Args:
        ports: what may be handed out.
        new_ticket: a secret of letters, digits, "-" and "_".
        clock: monotonic seconds.
    """

    def __init__(self, ports: range, new_ticket: Callable[[], str], clock: Callable[[], float]) -> None:
        self.ports = ports
        self._new_ticket = new_ticket
        self._clock = clock
        self._leases: dict[int, _Lease] = {}
        self._next = 0

    def __len__(self) -> int:
        """Ports handed out."""
        return len(self._leases)

    def free(self) -> Iterator[int]:
        """Ports that nobody holds, those that were given back longest ago first."""
        for step in range(len(self.ports)):
            port = self.ports[(self._next + step) % len(self.ports)]
            if port not in self._leases:
                yield port

    def lease(self, port: int, owner: str) -> str:
        """Hand out a free port; the ticket for it."""
        ticket = self._new_ticket()
        self._leases[port] = _Lease(owner, ticket, self._clock())
        self._next = (self.ports.index(port) + 1) % len(self.ports)
        return ticket

    def redeem(self, port: int, owner: str, ticket: str) -> bool:
        """Whether this ticket lets this owner in at this port; it does so once. A wrong one spoils nothing."""
        lease = self._leases.get(port)
        if lease is None or lease.ticket is None or lease.owner != owner or self._is_overdue(lease):
            return False
        if not is_same_secret(ticket, lease.ticket):
            return False
        lease.ticket = None
        return True

    def give_back(self, port: int) -> None:
        """The port may be handed out again."""
        self._leases.pop(port, None)

    def overdue(self) -> list[int]:
        """Ports whose target has not come in time."""
        return [port for port, lease in self._leases.items() if self._is_overdue(lease)]

    def _is_overdue(self, lease: _Lease) -> bool:
        return lease.ticket is not None and self._clock() - lease.since > TICKET_VALID_S


log = logging.getLogger(__name__)

_RETRY_MS = int(TICKET_VALID_S * 1000)
"""Milliseconds after which a target that found no free port may ask again: by then a port whose target did not come is
free.
"""


class DedicatedPorts:
    """Hands out ports of their own to targets and listens there. All methods belong to the event loop.

    Args:
        main: the socket on which targets come in; the others listen on its address.
        serve: begins to take connections in on a listening socket of this port.
    """

    def __init__(
        self, leases: PortLeases, main: socket.socket, serve: Callable[[socket.socket, int], Awaitable[Server]]
    ) -> None:
        self._leases = leases
        self._main = main
        self._serve = serve
        self._listeners: dict[int, asyncio.Task[Server]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def check(self) -> None:
        """Raises UsageError when not a single port can be had."""
        failure = "it is the main port"
        host, main_port = self._main.getsockname()[:2]
        for port in self._leases.ports:
            if port == main_port:  # which could be bound once more as long as nobody listens on it
                continue
            try:
                listen_beside(self._main, port).close()
            except OSError as error:
                failure = os.strerror(error.errno) if error.errno else str(error)
            else:
                return
        raise UsageError(f"no port of --port-range {_named(self._leases.ports)} can be had on {host}: {failure}")

    def hand_out(self, owner: str) -> OwnPort | Refusal:
        """Listen on a free port for a target with this key. Ports that others hold are passed over."""
        if self._is_closed:
            return Refusal(BUSY, "the hub is closing", _RETRY_MS)
        for port in self._leases.free():
            try:
                sock = listen_beside(self._main, port)
            except OSError:
                continue
            self._listeners[port] = asyncio.create_task(self._listen(sock, port))
            return OwnPort(port, self._leases.lease(port, owner))
        return Refusal(BUSY, f"every port of the hub's --port-range {_named(self._leases.ports)} is taken", _RETRY_MS)

    def admits(self, port: int, owner: str, ticket: str) -> bool:
        """Whether this ticket opens this port; it does so once."""
        return self._leases.redeem(port, owner, ticket)

    def give_back(self, port: int) -> None:
        """The target of this port has left: stop listening there."""
        self._leases.give_back(port)
        listener = self._listeners.pop(port, None)
        if listener is not None:
            ending = asyncio.create_task(_end(listener))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def expire(self) -> None:
        """Take back the ports whose targets have not come in time."""
        for port in self._leases.overdue():
            log.info("nobody has come to port %d in time", port)
            self.give_back(port)

    async def close(self) -> list[Server]:
        """Hand out no more; the listeners that are still to be closed."""
        self._is_closed = True
        outcomes = await asyncio.gather(*self._listeners.values(), return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, Server)]

    async def _listen(self, sock: socket.socket, port: int) -> Server:
        try:
            return await self._serve(sock, port)
        except BaseException:
            sock.close()
            raise


async def _end(listener: asyncio.Task[Server]) -> None:
    try:
        server = await listener
    except Exception:  # it costs the target that was sent there; it comes back for another port
        log.exception("a fault of the hub's own: nothing listened at a port that was handed out")
        return
    server.close()
    await server.wait_closed()


def _named(ports: range) -> str:
    return f"{ports.start}-{ports.stop - 1}"
