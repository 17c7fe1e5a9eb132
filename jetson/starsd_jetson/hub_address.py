"""Where the hub is, and the secret that opens its door."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from starsd_edge.errors import UsageError
from starsd_edge.protocol.messages import DEFAULT_PORT, TICKET_HEADER

_SCHEMES = {"http": "ws", "https": "wss"}
"""The WebSocket scheme to suggest to a user who gave an HTTP one."""


@dataclass(frozen=True)
class HubAddress:
    """A checked address.

    Attributes:
        url: ws:// or wss://, with a host and a port.
        token: bearer token, None for a hub that asks for none. Never shown.
        ticket: lets this target in once, at a port of its own; None at the hub's main port. Never shown.
        names_port: the user gave the port; else it is the one that hubs have.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)
    names_port: bool = True

    @classmethod
    def parse(cls, url: str, token: str | None = None) -> HubAddress:
        """Check the URL; where it names no port, it means 8317, with TLS too. A host alone, or a host with a port, is
        one without TLS.

        Raises:
            UsageError: it is not one of a hub.
        """
        if _holds_secret(url):
            raise UsageError("an address must not hold a secret: put the hub's token into a file and give --token-file")
        given, url = url, url if "://" in url else f"ws://{url}"
        if not _is_usable(url):
            raise UsageError(f"{given or 'an empty text'} is not the address of a hub: write {_as_it_should_be(given)}")
        names_port = urlsplit(url).port is not None
        return cls(url if names_port else _at_port(url, DEFAULT_PORT), token, names_port=names_port)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the handshake."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return headers if self.ticket is None else {**headers, TICKET_HEADER: self.ticket}

    def at_own_port(self, port: int, ticket: str) -> HubAddress:
        """Where the hub sends this target on: the same scheme, host and token."""
        return replace(self, url=_at_port(self.url, port), ticket=ticket)


def _at_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return parts._replace(netloc=netloc).geturl()


def _holds_secret(url: str) -> bool:
    """Seen in the text: one that is wrong in other ways must not be shown either."""
    place = url.rpartition("://")[2]
    return "@" in place.partition("/")[0].partition("?")[0]


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_one = parts.scheme in {"ws", "wss"} and bool(host) and parts.port != 0 and not parts.fragment
        return is_one and url.isprintable() and " " not in url
    except ValueError:  # a port that is no number, an unfinished IPv6 address, a name that is none
        return False


def _as_it_should_be(url: str) -> str:
    """The same place with the scheme of a hub; where that is none either, an example."""
    scheme, _, place = url.partition("://")
    meant = f"{_SCHEMES.get(scheme.lower(), scheme)}://{place}"
    if _is_usable(meant):
        return f"it as {HubAddress.parse(meant).url}"
    return f"it like desk, or like ws://192.168.1.20:{DEFAULT_PORT} (without a port it is {DEFAULT_PORT})"
