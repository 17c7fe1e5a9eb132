"""Options of the TCP connection to the hub."""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from starsd_edge.protocol.liveness import UNSENT_BYTES


class TcpOptions(Protocol):
    """The one method of a socket that is needed here."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """As `socket.socket.setsockopt`."""


def tune(sock: TcpOptions | None, give_up_s: float) -> None:
    """Send small frames at once, let the kernel end a connection whose data stays unacknowledged for this long, and
    keep it from taking in much more than it can send.

    Without the second, a link that a middlebox has dropped in silence looks open until the kernel's own limit, a
    quarter of an hour; without the third, a slow link that works looks stuck for as long as a megabyte takes.
    """
    if sock is None:
        return
    with contextlib.suppress(OSError):  # a socket that is not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
