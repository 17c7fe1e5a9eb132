"""A hub's `/status`, read by a program."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import msgspec

from starsd_edge.errors import StarsdError
from starsd_edge.telemetry.hub_facts import HubFacts

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 24
_OK = 200


def read_status(url: str) -> HubFacts:
    """The facts of the hub at this ws:// address on this machine.

    Raises:
        StarsdError: it does not answer, or with something else.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        body = answer.read(_MAX_BYTES)
        if answer.status != _OK:
            raise StarsdError(f"the hub at {url} gives no status: {answer.status} {answer.reason}")
        return msgspec.json.decode(body, type=HubFacts)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise StarsdError(f"the hub at {url} gives no status: {error or type(error).__name__}") from None
    finally:
        connection.close()
