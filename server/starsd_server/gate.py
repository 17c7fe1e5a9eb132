"""Who may connect, decided by the headers of the opening request: checks that cost little, before the hub allocates
anything for the connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from websockets.datastructures import Headers

from starsd_edge.listening import calls_this_machine, shown_secret
from starsd_edge.protocol.bundle_offer import OFFER_SUBPROTOCOL
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
    """Why a request may not come in; None when it may. A hub without a token is one on loopback."""
    if not keys and not calls_this_machine(headers.get_all("Host")):
        return TurnedAway(
            HTTPStatus.MISDIRECTED_REQUEST,
            "a hub without a token answers to localhost, 127.0.0.1 and [::1] only: for another name give it a token",
        )
    if "Origin" in headers:
        return TurnedAway(HTTPStatus.FORBIDDEN, "no browser is a client of this hub")
    if keys and shown_key(headers, keys) is None:
        return TurnedAway(HTTPStatus.UNAUTHORIZED, "give the hub's token: Authorization: Bearer TOKEN")
    return None


def wanted_role(headers: Headers) -> str:
    """The subprotocol of what the client is: a target, a monitor, or one that fetches bundles. One that offers several
    is the first of these, and one that offers none is taken for a target.
    """
    offered = ",".join(headers.get_all("Sec-WebSocket-Protocol"))
    names = {name.strip() for name in offered.split(",")}
    return next((role for role in (SUBPROTOCOL, FEED_SUBPROTOCOL, OFFER_SUBPROTOCOL) if role in names), SUBPROTOCOL)


def shown_ticket(headers: Headers) -> str:
    """The ticket for a port of the target's own; empty where there is not exactly one."""
    tickets = headers.get_all(TICKET_HEADER)
    return tickets[0].strip() if len(tickets) == 1 else ""


def shown_key(headers: Headers, keys: Sequence[HubKey]) -> HubKey | None:
    """The key that a request shows. All are compared, whichever it is."""
    number = shown_secret(headers.get_all("Authorization"), [key.token for key in keys])
    return None if number is None else keys[number]


def owner_of(headers: Headers, keys: Sequence[HubKey]) -> str:
    """Name of the key that an admitted request shows; not the key."""
    key = shown_key(headers, keys)
    return "anyone" if key is None else key.owner
