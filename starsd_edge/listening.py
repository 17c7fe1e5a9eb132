"""What listens on a port: the address, and the checks of who calls that need nothing but the request's headers.

The hub and the HTTP API of a target have the same rule. Without a secret they are on loopback, and there they answer to
the names of this machine only; with one, whoever shows it comes in, from wherever.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starsd_edge.errors import UsageError
from starsd_edge.telemetry.hub_opening import hub_listens

TOKEN_OF_TARGETS = "targets must show a token: give --token-file FILE"  # noqa: S105


def bind(host: str, port: int, has_token: bool, remedy: str = TOKEN_OF_TARGETS) -> socket.socket:
    """A TCP socket bound to this address, not listening yet. Port 0 takes a free one. It is bound before anything heavy
    is loaded, so that a taken port is known at once.

    Args:
        remedy: what must be shown and how that is made so, for the refusal without a token.

    Raises:
        UsageError: the address is not loopback and there is no token to keep others out; it is not known, not of
            this machine, taken, or not permitted.
    """
    family, address = _resolve(host, port)
    if not has_token and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(f"{host} can be reached from other machines, so {remedy}, or listen on 127.0.0.1")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise explain(host, port, error) from None
    return sock


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


def is_same_secret(given: str, secret: str) -> bool:
    """Comparison in a time that tells nothing of the secret."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def shown_secret(authorizations: Sequence[str], secrets: Sequence[str]) -> int | None:
    """Number of the secret that a request shows as a bearer token. All are compared, whichever it is.

    Args:
        authorizations: its Authorization headers.
    """
    scheme, _, given = authorizations[0].partition(" ") if len(authorizations) == 1 else ("", "", "")
    shown = [number for number, secret in enumerate(secrets) if is_same_secret(given.strip(), secret)]
    return shown[0] if shown and scheme.lower() == "bearer" else None


def calls_this_machine(hosts: Sequence[str]) -> bool:
    """Whether the Host headers of a request name this machine as such.

    A page in a browser of this machine can reach what listens on loopback under a name of its own that is made to point
    here (DNS rebinding): then the browser sends no Origin, but its Host is that name.
    """
    try:
        name = urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
    except ValueError:  # an unfinished IPv6 address
        return False
    if name in {"localhost", "localhost."}:
        return True
    try:
        return name is not None and ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
