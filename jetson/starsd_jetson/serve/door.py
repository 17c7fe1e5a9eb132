"""Who is let in, decided by the headers of a request, and the name that each request has in the log.

Without keys a server is on loopback and answers to this machine's own names. A page of another origin is let in only
where that origin was named: its browser would send the request, and the model would work for it, even though the page
could not read the answer.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starsd_edge.listening import calls_this_machine, shown_secret
from starsd_edge.protocol.codec import printable
from starsd_jetson.serve.schema import ApiError

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"
ANY_ORIGIN = "*"
_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SHOWN = 200
"""Most characters of what a client has sent that are shown."""
_POLLED = frozenset({"/health", "/metrics"})
"""Pages that programs ask for all the time."""
_PUBLIC = frozenset({"/health", "/"})
"""Pages that tell nothing but that the server is up: the chat page asks for a key by itself."""


@dataclass(frozen=True)
class DoorRules:
    """Who may come in.

    Attributes:
        keys: of which a request must show one; without any, everybody on this machine.
        origins: of pages that may use the API; `ANY_ORIGIN` lets in all.
    """

    keys: Sequence[str] = ()
    origins: Sequence[str] = ()


def turn_away(path: str, headers: Headers, rules: DoorRules) -> ApiError | None:
    """Why a request may not come in; None when it may."""
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if not rules.keys and not calls_this_machine(hosts):
        return ApiError(
            "a server without keys answers to localhost, 127.0.0.1 and [::1] only: for another name give it keys",
            status=HTTPStatus.MISDIRECTED_REQUEST,
        )
    is_own_page = len(hosts) == 1 and origin in {f"{scheme}://{hosts[0]}" for scheme in ("http", "https")}
    if origin is not None and not is_own_page and not {origin, ANY_ORIGIN} & {*rules.origins}:
        return ApiError(
            f"pages of {origin[:_SHOWN]} may not use this server: start it with --cors-origin {origin[:_SHOWN]}",
            status=HTTPStatus.FORBIDDEN,
        )
    if rules.keys and path not in _PUBLIC and shown_secret(headers.getlist("authorization"), rules.keys) is None:
        return ApiError(
            "give one of this server's keys: Authorization: Bearer KEY",
            status=HTTPStatus.UNAUTHORIZED,
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return None


def request_id(headers: Headers) -> str:
    """The name of a request: what the client calls it, if that can stand in a log, else a random one."""
    given = headers.get(REQUEST_ID, "")
    return given if _GOOD_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


class RequestIds:
    """Middleware that names each request, to its client and in the log.

    Args:
        responded: called with the path and the status of each response.
    """

    def __init__(self, app: ASGIApp, responded: Callable[[str, int], None]) -> None:
        self._app = app
        self._responded = responded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_id(Headers(scope=scope))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = name
                path = printable(scope["path"][:_SHOWN])
                level = logging.DEBUG if scope["path"] in _POLLED else logging.INFO
                log.log(level, "%s %s %s: %d", name, scope["method"], path, message["status"])
                self._responded(scope["path"], message["status"])
            await send(message)

        await self._app(scope, receive, named)


class Door:
    """Middleware that lets in whom the rules let in."""

    def __init__(self, app: ASGIApp, rules: DoorRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http":
            refusal = turn_away(scope["path"], Headers(scope=scope), self._rules)
            if refusal is not None:
                app = JSONResponse(refusal.body(), refusal.status, refusal.headers)
        await app(scope, receive, send)
