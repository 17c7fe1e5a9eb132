"""Where the hub is, and the secret that opens its door."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starsd_edge.errors import UsageError

_MOST_TOKEN_BYTES = 4096


@dataclass(frozen=True)
class HubAddress:
    """A checked address.

    Attributes:
        url: ws:// or wss://, with a host.
        token: bearer token, None for a hub that asks for none. Never shown.
    """

    url: str
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, token_file: Path | None = None) -> HubAddress:
        """Check the URL and read the token.

        Raises:
            UsageError: the URL is not one of a hub, or the file holds no token.
        """
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna")
            usable = parts.scheme in {"ws", "wss"} and bool(host) and parts.port != 0 and not parts.fragment
        except ValueError:  # a port that is no number, an unfinished IPv6 address, a name that is none
            usable = False
        if not usable:
            raise UsageError(f"{url} is not the address of a hub: write it like ws://192.168.1.20:8317")
        if parts.username is not None or parts.password is not None:
            raise UsageError("an address must not hold a secret: put the hub's token into a file and give --token-file")
        return cls(url, None if token_file is None else read_token(token_file))

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the handshake."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def read_token(path: Path) -> str:
    """The token in a file, without the white space around it.

    Raises:
        UsageError: the file cannot be read, or holds something other than one token.
    """
    try:
        with path.open("rb") as file:
            token = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        token = ""
    if not token or len(token) > _MOST_TOKEN_BYTES or not all("!" <= character <= "~" for character in token):
        raise UsageError(f"{path} does not hold a token: it must be one word of printable ASCII")
    return token
