"""Who may connect, decided by the headers of the opening request: checks that cost little, before the hub allocates
anything for the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.datastructures import Headers

from starsd_edge.protocol.messages import SUBPROTOCOL, TICKET_HEADER
from starsd_edge.scheduling.policies import KeyTerms
from starsd_edge.telemetry.feed import FEED_SUBPROTOCOL


@dataclass(frozen=True)
class HubKey:
    """One bearer token: its holders show it at the door, and its terms say what they get of the drafter.

    Attributes:
        token: the secret; never shown.
        terms: terms of all sessions that belong to the key.
    """

    token: str = field(repr=False)
    terms: KeyTerms = field(default_factory=KeyTerms)

    @property
    def owner(self) -> str:
        """The key's name inside the hub, from which the key cannot be told."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TurnedAway:
    """The refusal of a connection: an HTTP status, and one line for people."""

    status: HTTPStatus
    line: str


def turn_away(headers: Headers, keys: Sequence[HubKey]) -> TurnedAway | None:
    """Why a request may not come in; None when it may.

    A hub without a token is one on loopback. There a page in a browser of this machine could reach it under a name of
    its own that is made to point here (DNS rebinding): then the browser sends no Origin, but its Host is that name.
    """
    if not keys and not _calls_this_machine(headers.get_all("Host")):
        return TurnedAway(
            HTTPStatus.MISDIRECTED_REQUEST,
            "a hub without a token answers to localhost, 127.0.0.1 and [::1] only: for another name give it a token",
        )
    if "Origin" in headers:
        return TurnedAway(HTTPStatus.FORBIDDEN, "no browser is a client of this hub")
    if keys and shown_key(headers, keys) is None:
        return TurnedAway(HTTPStatus.UNAUTHORIZED, "give the hub's token: Authorization: Bearer TOKEN")
    return None


def wants_feed(headers: Headers) -> bool:
    """Whether this is a monitor. A client that offers both roles is a target: the door prefers that one."""
    offered = ",".join(headers.get_all("Sec-WebSocket-Protocol"))
    names = {name.strip() for name in offered.split(",")}
    return FEED_SUBPROTOCOL in names and SUBPROTOCOL not in names


def shown_ticket(headers: Headers) -> str:
    """The ticket for a port of the target's own; empty where there is not exactly one."""
    tickets = headers.get_all(TICKET_HEADER)
    return tickets[0].strip() if len(tickets) == 1 else ""


def is_same_secret(given: str, secret: str) -> bool:
    """Comparison in a time that tells nothing of the secret."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def shown_key(headers: Headers, keys: Sequence[HubKey]) -> HubKey | None:
    """The key that a request shows. All are compared, whichever it is."""
    authorizations = headers.get_all("Authorization")
    scheme, _, given = authorizations[0].partition(" ") if len(authorizations) == 1 else ("", "", "")
    shown = [key for key in keys if is_same_secret(given.strip(), key.token)]
    return shown[0] if shown and scheme.lower() == "bearer" else None


def owner_of(headers: Headers, keys: Sequence[HubKey]) -> str:
    """Name of the key that an admitted request shows; not the key."""
    key = shown_key(headers, keys)
    return "anyone" if key is None else key.owner


def _calls_this_machine(hosts: list[str]) -> bool:
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
