"""Opening a WebSocket to a hub, and saying in words for the user why that was not possible.

Whatever is at the other end, and whatever it answers, the outcome is a connection or one `NotOpenedError`: nothing that
a peer does is a fault of the program that asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urljoin, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.errors import StarsdError
from starsd_edge.protocol.codec import printable
from starsd_edge.protocol.messages import HUB_HEADER

OPEN_TIMEOUT_S = 5.0
"""Seconds from the first packet to the WebSocket, after which the hub counts as not reachable."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds for the closing handshake, and for the last messages before it, after which the connection is cut."""

_HEALTH_TIMEOUT_S = 2.0
"""Seconds that a port of this machine has to answer as a hub."""
_NO_HUB = "what listens there is no hub"
_MOST_WORDS = 200
"""Most characters of an error's own text that are shown: part of it may come from the peer."""

NOT_LET_IN = (401, 403)
"""HTTP statuses of a hub that wants another token."""
MISDIRECTED = 421
"""HTTP status of a hub without a token, which answers to loopback names only, for an address with another name."""
LOOPBACK_ONLY = "it has no token, and without one it answers to a loopback address only"

_BAD_REQUEST = 400
_REDIRECTS = range(300, 400)
_SCHEMES = {"http": ("ws", 80), "https": ("wss", 443), "ws": ("ws", 80), "wss": ("wss", 443)}
"""Schemes that a redirect may have, each with that of a WebSocket and the port that is meant where it names none."""

_library_log = logging.getLogger("starsd_edge.hub_opening.websockets")
_library_log.propagate = False  # at its debug level it writes out frames, and with them tags and tokens
_library_log.addHandler(logging.NullHandler())


class NotOpenedError(StarsdError):
    """There is no WebSocket; the message says why, in a few words.

    Attributes:
        status: HTTP status of the answer; None where there was no HTTP answer.
    """

    def __init__(self, why: str, status: int | None = None) -> None:
        super().__init__(why)
        self.status = status


class _ConnectHere(connect):
    """Follows no redirect: text and token are for the hub that the user named."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


async def open_hub(url: str, headers: Mapping[str, str], subprotocol: str, **limits: Any) -> ClientConnection:
    """Connect to the hub at this ws:// or wss:// address.

    Args:
        headers: HTTP headers of the handshake; the token is in one of them.
        limits: limits of the connection, as `websockets.asyncio.client.connect` takes them.

    Raises:
        NotOpenedError: nothing listens there, or it is no hub, or the hub does not let this client in.
    """
    try:
        connection: ClientConnection = await _ConnectHere(
            url,
            additional_headers=dict(headers),
            subprotocols=[Subprotocol(subprotocol)],
            proxy=None,  # a proxy in the environment is not meant for the star
            compression=None,  # features are noise to it
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            logger=_library_log,
            **limits,
        )
    except Exception as error:  # of whatever type the library raises for what a peer has sent
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        raise NotOpenedError(describe(error, url), status) from None
    if connection.subprotocol != subprotocol:
        connection.transport.abort()
        raise NotOpenedError(_NO_HUB)
    return connection


def hub_listens(host: str, port: int) -> bool:
    """Whether what listens at this address of this machine is a hub. Blocks for some seconds at most."""
    connection = HTTPConnection(host, port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().getheader(HUB_HEADER) is not None
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def describe(error: BaseException, url: str) -> str:
    """What went wrong on the way to the hub at this address, in a few words."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return error.strerror or "no such host"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message or 'it does not fit'}; SSL_CERT_FILE names a file "
            "with the authorities to trust"
        )
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'}): if it has no TLS, use ws://"
    if isinstance(error, InvalidStatus):
        locations = error.response.headers.get_all("Location")
        return http_answer(url, error.response.status_code, locations[0] if locations else None)
    if isinstance(error, (InvalidHandshake, HTTPException)):
        return _NO_HUB if urlsplit(url).scheme == "wss" else f"{_NO_HUB}; if it takes TLS only, use wss://"
    if isinstance(error, ConnectionClosed):
        return "the connection was lost"
    # asyncio words its errors for programmers, and joins those of several addresses into one without a number.
    number = re.search(r"\[Errno (\d+)\]", str(error))
    return os.strerror(int(number[1])) if number else printable(str(error))[:_MOST_WORDS] or type(error).__name__


def token_remedy(has_token: bool) -> str:
    """What a user who was answered with one of `NOT_LET_IN` should do."""
    return "check --token-file" if has_token else "give its token with --token-file"


def is_redirect(status: int) -> bool:
    """Whether this HTTP status sends elsewhere. Nobody follows: text and token are for the hub that the user named."""
    return status in _REDIRECTS


def http_answer(url: str, status: int, location: str | None) -> str:
    """What answered with HTTP in the place of a WebSocket, and what to do.

    Args:
        url: what was asked, ws:// or wss://.
        location: where it sends on to; what another wrote, so shown only where it is an address.
    """
    text = f"it answers with HTTP {status}"
    if is_redirect(status):
        meant = _sent_on(url, location or "")
        return f"{text} and sends on to {meant}: give that address if the hub is there" if meant else text
    if status == _BAD_REQUEST and urlsplit(url).scheme == "ws":
        return f"{text}: if it takes TLS only, use wss://"
    return text


def _sent_on(url: str, location: str) -> str | None:
    """The address of a hub that a redirect means; None where it means none."""
    try:
        parts = urlsplit(urljoin(url, location))
        port = parts.port
    except ValueError:  # an unfinished IPv6 address, a port that is no number
        return None
    if parts.scheme not in _SCHEMES or not parts.hostname or "@" in parts.netloc or not _is_plain(location):
        return None
    scheme, usual_port = _SCHEMES[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    meant = f"{scheme}://{host}:{port or usual_port}{parts.path.rstrip('/')}"
    return None if meant == url.rstrip("/") else meant


def _is_plain(location: str) -> bool:
    return bool(location) and len(location) <= 200 and location.isascii() and location.isprintable()
