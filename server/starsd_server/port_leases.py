"""Which targets hold which ports of their own, and the tickets that let them in.

A lease begins with a ticket that is good once, for its owner, at its port, and for a few seconds. It ends when its
target leaves, or at the end of those seconds if nobody came. Pure: no sockets, time and tickets come from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starsd_server.gate import is_same_secret

TICKET_VALID_S = 5.0
"""From WELCOME to the ticket at the port of its own: two round trips and a TCP handshake on a bad link."""


@dataclass
class _Lease:
    owner: str
    ticket: str | None = field(repr=False)
    """None once it was used."""
    since: float


class PortLeases:
    """The leases of one hub.

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
