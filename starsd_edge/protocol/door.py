"""What a hub's address and its HTTP answers mean to those who knock, targets and monitors alike."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

DEFAULT_PORT = 8317
"""Of an address that names none, with and without TLS."""
HUB_HEADER = "Starsd-Hub"
"""In what a hub answers over HTTP, and in nothing else: by it a hub is known to those who have no token."""
NOT_LET_IN = (401, 403)
MISDIRECTED = 421
"""The name in the address is none of loopback, and a hub without a token answers to no other."""

LOOPBACK_ONLY = "it has no token, and without one it answers to a loopback address only"

_BAD_REQUEST = 400
_REDIRECTS = range(300, 400)
_SCHEMES = {"http": ("ws", 80), "https": ("wss", 443), "ws": ("ws", 80), "wss": ("wss", 443)}
"""Of a redirect, with the ports that its author means where it names none."""


def token_remedy(has_token: bool) -> str:
    """What to do about one of `NOT_LET_IN`."""
    return "check --token-file" if has_token else "give its token with --token-file"


def is_redirect(status: int) -> bool:
    """Whether it sends elsewhere. Nobody follows: what a target says is for the hub that its user named."""
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
