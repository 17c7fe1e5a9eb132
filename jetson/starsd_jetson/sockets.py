"""Options of the TCP connection to the hub."""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol


class TcpOptions(Protocol):
    """The one method of a socket that is needed here."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """As `socket.socket.setsockopt`."""


def tune(sock: TcpOptions | None, give_up_s: float) -> None:
    """Send small frames at once, and let the kernel end a connection whose data stays unacknowledged for this long.

    Without the second, a link that a middlebox has dropped in silence looks open until the kernel's own limit, a
    quarter of an hour.
    """
    if sock is None:
        return
    with contextlib.suppress(OSError):  # a socket that is not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000))
