"""Why a connection to the hub ended or never stood, in words for the user, and whether to try again."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from dataclasses import dataclass

from starsd_edge.errors import StarsdError
from starsd_edge.protocol.door import LOOPBACK_ONLY, MISDIRECTED, NOT_LET_IN, token_remedy
from starsd_jetson.hub_address import HubAddress


class HubError(StarsdError):
    """The hub cannot be reached or refuses this target."""


@dataclass(frozen=True)
class Ending:
    """The end of one attempt.

    Attributes:
        reason: for the user.
        final: trying again would not help.
        retry_after_s: the hub asked to be left alone for this long.
    """

    reason: str
    final: bool = False
    retry_after_s: float = 0.0


def unreachable(address: HubAddress, why: str) -> str:
    """The line for a hub that is not there."""
    if address.ticket is not None:
        return (
            f"the hub sent this target on to {address.url}, which cannot be reached ({why}): "
            "let targets through to all of its --port-range"
        )
    return f"the hub {address.url} cannot be reached ({why})"


def after_http_status(address: HubAddress, status: int) -> Ending:
    """The hub answered the handshake with this HTTP status: a wrong token stays wrong, all else may pass. At a port of
    the target's own all may pass, since the main port knew the token.
    """
    if address.ticket is not None:
        return Ending(f"the hub sent this target on to {address.url} and did not let it in there (HTTP {status})")
    if status == MISDIRECTED:
        return Ending(unreachable(address, LOOPBACK_ONLY))
    if status in NOT_LET_IN:
        remedy = token_remedy(address.token is not None)
        return Ending(f"the hub {address.url} does not let this target in (HTTP {status}): {remedy}", final=True)
    return Ending(unreachable(address, f"it answers with HTTP {status}"))


def describe(error: BaseException) -> str:
    """What went wrong below the WebSocket, in a few words."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return error.strerror or "no such host"
    # asyncio words its errors for programmers, and joins those of several addresses into one without a number.
    number = re.search(r"\[Errno (\d+)\]", str(error))
    return os.strerror(int(number[1])) if number else str(error) or type(error).__name__
