"""The address a hub listens on. It is bound before anything heavy is loaded, so that a taken port is known at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

from starsd_edge.errors import UsageError
from starsd_edge.telemetry.hub_opening import hub_listens

MAX_OWN_PORTS = 1024
"""Most ports that a hub may hand out to targets. To look for a free one where others hold all of them takes the event
loop about 20 ms (measured, CPU).
"""
_BACKLOG = 8
"""TCP connections that may wait to be accepted at a target's own port, where one target is expected."""


def bind(host: str, port: int, has_token: bool) -> socket.socket:
    """A TCP socket bound to this address, not listening yet. Port 0 takes a free one.

    Raises:
        UsageError: the address is not loopback and there is no token to keep others out; it is not known, not of
            this machine, taken, or not permitted.
    """
    family, address = _resolve(host, port)
    if not has_token and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(
            f"{host} can be reached from other machines, so targets must show a token: "
            "give --token-file FILE, or listen on 127.0.0.1"
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise explain(host, port, error) from None
    return sock


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


def explain(host: str, port: int, error: OSError) -> UsageError:
    """One line on why this address cannot be had."""
    if error.errno == errno.EADDRINUSE and hub_listens(host, port):
        return UsageError(
            f"a hub listens on port {port} of {host} already (`starsd-edge monitor` shows it): stop it, or choose "
            "another --port"
        )
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use: stop the program that listens there, or choose another --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host} is no address of this machine: choose another --host")
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} needs more rights than this user has: choose a --port above 1023")
    return UsageError(f"cannot listen on {host} port {port}: {error.strerror}")


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The first address of a host, IPv4 before IPv6."""
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is no port: choose a --port from 0 (any free one) to 65535")
    if not host:
        raise UsageError("--host is empty: give an address of this machine, such as 127.0.0.1")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"host {host!r} is not known: give an address of this machine, such as 127.0.0.1") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))
