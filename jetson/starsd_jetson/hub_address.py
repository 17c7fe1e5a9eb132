"""Where the hub is, and the secret that opens its door."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from starsd_edge.errors import UsageError
from starsd_edge.protocol.messages import TICKET_HEADER

_SCHEMES = {"http": "ws", "https": "wss"}


@dataclass(frozen=True)
class HubAddress:
    """A checked address.

    Attributes:
        url: ws:// or wss://, with a host.
        token: bearer token, None for a hub that asks for none. Never shown.
        ticket: lets this target in once, at a port of its own; None at the hub's main port. Never shown.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, token: str | None = None) -> HubAddress:
        """Check the URL.

        Raises:
            UsageError: it is not one of a hub.
        """
        if _holds_secret(url):
            raise UsageError("an address must not hold a secret: put the hub's token into a file and give --token-file")
        if not _is_usable(url):
            raise UsageError(f"{url or 'an empty text'} is not the address of a hub: write {_as_it_should_be(url)}")
        return cls(url, token)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the handshake."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return headers if self.ticket is None else {**headers, TICKET_HEADER: self.ticket}

    def at_own_port(self, port: int, ticket: str) -> HubAddress:
        """Where the hub sends this target on: the same scheme, host and token."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return replace(self, url=parts._replace(netloc=netloc).geturl(), ticket=ticket)


def _holds_secret(url: str) -> bool:
    """Seen in the text: one that is wrong in other ways must not be shown either."""
    place = url.rpartition("://")[2]
    return "@" in place.partition("/")[0].partition("?")[0]


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in {"ws", "wss"} and bool(host) and parts.port != 0 and not parts.fragment
    except ValueError:  # a port that is no number, an unfinished IPv6 address, a name that is none
        return False


def _as_it_should_be(url: str) -> str:
    """The same place with the scheme of a hub, where it names one with its port; else an example."""
    scheme, separator, place = url.partition("://")
    meant = f"{_SCHEMES.get(scheme.lower(), scheme)}://{place}" if separator else f"ws://{url}"
    if _is_usable(meant) and urlsplit(meant).port is not None:
        return f"it as {meant}"
    return "it like ws://192.168.1.20:8317"
