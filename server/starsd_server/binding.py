"""The ports that a hub hands out to targets, beside the one that it listens on."""

from __future__ import annotations

import socket

from starsd_edge.errors import UsageError

MAX_OWN_PORTS = 1024
"""Most ports that a hub may hand out to targets. To look for a free one where others hold all of them takes the event
loop about 20 ms (measured, CPU).
"""
_BACKLOG = 8
"""TCP connections that may wait to be accepted at a target's own port, where one target is expected."""


def listen_beside(main: socket.socket, port: int) -> socket.socket:
    """A socket that listens on another port of the address that `main` is bound to.

    Raises:
        OSError: the port is taken or not permitted.
    """
    sock = socket.socket(main.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, *scope = main.getsockname()
        sock.bind((host, port, *scope))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def parse_port_range(text: str) -> range:
    """The ports of a text like 9000-9099, both ends included.

    Raises:
        UsageError: it is no range of ports, or too long a one.
    """
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        raise UsageError(f"{text!r} is no range of ports: write --port-range like 9000-9099")
    ports = range(int(first), int(last) + 1)
    if not (0 < ports.start < ports.stop <= 1 << 16):
        raise UsageError(f"{text!r} is no range of ports: --port-range goes from 1 to 65535, the lower one first")
    if len(ports) > MAX_OWN_PORTS:
        raise UsageError(f"--port-range {text} has {len(ports)} ports: a hub takes at most {MAX_OWN_PORTS}")
    return ports
