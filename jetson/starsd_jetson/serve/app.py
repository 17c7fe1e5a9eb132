"""Routes and limits: how a body is read, how a response leaves, what happens when its reader goes.

Everything that a client can be told is an `ApiError`. An error of ours is told as one, too, and its text stays in the
log: a response never holds a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.answers import BusyError
from starsd_jetson.serve import page
from starsd_jetson.serve.backend import Backend, Job, JobCancelledError
from starsd_jetson.serve.chat import ChatWriter, Chunk, CompletionWriter, Head, Writer
from starsd_jetson.serve.choices import Choices
from starsd_jetson.serve.door import REQUEST_ID, Door, DoorRules, RequestIds
from starsd_jetson.serve.metrics import (
    ANSWERED,
    CONTENT_TYPE,
    FAILED,
    QUEUE_FULL,
    REFUSED,
    STOPPED,
    RequestWatch,
    ServeMetrics,
)
from starsd_jetson.serve.prepare import Prepared, Preparer
from starsd_jetson.serve.responses import ResponseWriter
from starsd_jetson.serve.schema import ApiError, ChatBody, CompletionBody, ResponsesBody, parse_body

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""Of a request: more than any context holds, and little enough to be held for several."""
KEEPALIVE_S = 15.0
"""Seconds after which a stream that has nothing to say says that it is there: proxies cut silent connections."""
_LONGEST_LENGTH = 15
"""Digits of a length that are worth reading."""
_CLIENT_LEFT = 499
"""Status, in the log, of a response that nobody reads."""
_MODEL_PATH = "/v1/models/"
_SSE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_DONE = b"data: [DONE]\n\n"
_KEEPALIVE = b": waiting\n\n"


@dataclass(frozen=True)
class Model:
    """What is served.

    Attributes:
        names: what clients may call it; the first is its own.
        created: seconds since 1970.
        fingerprint: see `Head`.
    """

    names: Sequence[str]
    created: int
    fingerprint: str
    context: int


@dataclass(frozen=True)
class Kind:
    """One of the three kinds of request.

    Attributes:
        prepare: from the bytes of a body to what is to be answered, and what writes the response.
        is_named: its stream names the type of each event, and ends with one of them.
    """

    prepare: Callable[[bytes], tuple[Prepared, Writer]]
    is_named: bool = False


class Api:
    """The endpoints of one model.

    Args:
        hub_is_up: asked for health; None without a hub.
        new_id: a random id of so many letters and digits.
        now: seconds since 1970.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        preparer: Preparer,
        backend: Backend,
        metrics: ServeMetrics,
        *,
        hub_is_up: Callable[[], bool | None],
        new_id: Callable[[int], str],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._preparer = preparer
        self._backend = backend
        self._metrics = metrics
        self._hub_is_up = hub_is_up
        self._new_id = new_id
        self._now = now
        self._clock = clock
        self._routes = self._all_routes()
        self._paths = {route.path.replace(":path", "") for route in self._routes}

    def routes(self) -> list[Route]:
        """All there are."""
        return self._routes

    def _all_routes(self) -> list[Route]:
        return [
            self._post("/v1/chat/completions", Kind(self._chat)),
            self._post("/v1/completions", Kind(self._completion)),
            self._post("/v1/responses", Kind(self._response, is_named=True)),
            Route("/v1/models", self._models),
            Route(f"{_MODEL_PATH}{{name:path}}", self._one_model),
            Route("/health", self._health),
            Route("/metrics", self._metrics_page),
            Route(page.PATH, self._page),
        ]

    def _post(self, path: str, kind: Kind) -> Route:
        async def endpoint(request: Request) -> Response:
            watch = RequestWatch(self._metrics, self._clock)
            try:
                return await self._respond(request, kind, watch)
            except ClientDisconnect:
                watch.left()
                return Response(status_code=_CLIENT_LEFT)
            except Exception as error:  # those of ours and of the engine are told without their text
                told = error if isinstance(error, ApiError) else _failure(error)
                watch.end(_outcome(told))
                return error_response(told)

        return Route(path, endpoint, methods=["POST"])

    async def _respond(self, request: Request, kind: Kind, watch: RequestWatch) -> Response:
        data = await _read_body(request)
        prepared, writer = await asyncio.to_thread(kind.prepare, data)
        try:
            job = self._backend.submit(prepared.requests)
        except BusyError as error:
            raise ApiError(
                str(error),
                status=HTTPStatus.TOO_MANY_REQUESTS,
                code="queue_full",
                headers={"Retry-After": str(error.retry_after_s)},
            ) from None
        left = asyncio.create_task(_cancel_when_left(request, job, watch))
        chunks = self._chunks(job, writer, watch)
        if prepared.stream:
            events = _stream(chunks, kind, job, left, watch)
            return StreamingResponse(events, headers=_SSE, media_type="text/event-stream")
        try:
            async for _ in chunks:
                pass
        except JobCancelledError:
            raise (ClientDisconnect() if left.done() else _stopping()) from None
        finally:
            job.cancel()
            left.cancel()
        return _json(writer.whole())

    async def _chunks(self, job: Job, writer: Writer, watch: RequestWatch) -> AsyncIterator[Chunk | None]:
        """The chunks of a response; None where nothing came for a while."""
        for chunk in writer.begin():
            yield chunk
        choices = writer.choices
        while not choices.is_done:
            try:
                number, event = await asyncio.wait_for(job.next(), KEEPALIVE_S)
            except asyncio.TimeoutError:
                yield None
                continue
            watch.token()
            following = writer.take(number, event)
            if choices.is_done:
                watch.end(ANSWERED)
                for choice in choices.all:
                    self._metrics.finished(choice.finish_reason or "")
            for chunk in following:
                yield chunk

    def _chat(self, data: bytes) -> tuple[Prepared, Writer]:
        prepared = self._preparer.chat(parse_body(data, ChatBody))
        return prepared, ChatWriter(self._head("chatcmpl-"), self._choices(prepared), self._tokenizer)

    def _completion(self, data: bytes) -> tuple[Prepared, Writer]:
        prepared = self._preparer.completion(parse_body(data, CompletionBody))
        return prepared, CompletionWriter(self._head("cmpl-"), self._choices(prepared), self._tokenizer)

    def _response(self, data: bytes) -> tuple[Prepared, Writer]:
        body = parse_body(data, ResponsesBody)
        prepared = self._preparer.response(body)
        choices = self._choices(prepared)
        return prepared, ResponseWriter(self._head("resp_"), choices, self._tokenizer, body, self._new_id)

    def _head(self, prefix: str) -> Head:
        return Head(prefix + self._new_id(24), int(self._now()), self._model.names[0], self._model.fingerprint)

    def _choices(self, prepared: Prepared) -> Choices:
        return Choices(prepared, self._new_id)

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._shown(name) for name in self._model.names]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._model.names:
            return error_response(
                ApiError(
                    f"there is no model {name!r} here", "model", status=HTTPStatus.NOT_FOUND, code="model_not_found"
                )
            )
        return _json(self._shown(name))

    def _shown(self, name: str) -> Mapping[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "starsd-edge",
            "max_model_len": self._model.context,
        }

    async def _health(self, request: Request) -> Response:
        is_up = self._hub_is_up()
        return _json({"status": "ok", "hub": "none" if is_up is None else "up" if is_up else "away"})

    async def _page(self, request: Request) -> Response:
        return page.chat_page()

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    def responded(self, path: str, status: int) -> None:
        """A response to this path has begun."""
        if path.startswith(_MODEL_PATH):
            path = f"{_MODEL_PATH}{{name}}"
        self._metrics.responded(path if path in self._paths else "other", status)


def build_app(api: Api, rules: DoorRules, closing: Callable[[], None] = lambda: None) -> Starlette:
    """The application.

    Args:
        closing: called when the server stops.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(closing)

    middleware = [Middleware(RequestIds, responded=api.responded)]
    if rules.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(rules.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID, "Retry-After"],
            )
        )
    middleware.append(Middleware(Door, rules=rules))
    return Starlette(
        routes=api.routes(),
        middleware=middleware,
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


def error_response(error: ApiError) -> Response:
    """An error in the place of an answer."""
    return _json(error.body(), error.status, error.headers)


def _json(body: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """What no route takes."""
    known = error if isinstance(error, HTTPException) else HTTPException(HTTPStatus.NOT_FOUND)
    status, path = HTTPStatus(known.status_code), request.url.path[:200]
    line = f"{request.method} {path}: {status.phrase.lower()}"
    if any(route.path == f"/v1{path}" for route in request.app.routes):
        line += f": did you mean /v1{path}?"
    return error_response(ApiError(line, status=status, headers=known.headers))


def _outcome(error: ApiError) -> str:
    """How a request that was told this has ended."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return QUEUE_FULL
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return STOPPED
    return FAILED if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else REFUSED


def _stopping() -> ApiError:
    """What an answer that the server's own end has cut off ends with."""
    return ApiError("the server stops: try again later", status=HTTPStatus.SERVICE_UNAVAILABLE)


def _failure(error: Exception) -> ApiError:
    """An error that is not the client's."""
    if isinstance(error, UsageError):  # of the model's numbers, which only an answer can show
        return ApiError(str(error))
    name = type(error).__name__
    if isinstance(error, StarsdError):
        log.error("an answer failed: %s", error)
    else:
        log.error("an answer failed: %s: %s", name, error, exc_info=log.isEnabledFor(logging.DEBUG))
    return ApiError(f"the answer failed ({name}): the server's log says more", status=HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read_body(request: Request) -> bytes:
    """The body, of which no more is read than may come."""
    too_large = ApiError(
        f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    )
    length = request.headers.get("content-length", "0")
    if len(length) > _LONGEST_LENGTH or (length.isdecimal() and int(length) > MAX_BODY_BYTES):
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise too_large
    return bytes(data)


async def _cancel_when_left(request: Request, job: Job, watch: RequestWatch) -> None:
    """Cancel the work for a client that has gone, whether or not anything was sent to it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    watch.left()
    job.cancel()


async def _stream(
    chunks: AsyncIterator[Chunk | None], kind: Kind, job: Job, left: asyncio.Task[None], watch: RequestWatch
) -> AsyncIterator[bytes]:
    """Chunks as server-sent events."""
    try:
        async for chunk in chunks:
            yield _KEEPALIVE if chunk is None else _event(chunk, kind)
        if not kind.is_named:
            yield _DONE
    except JobCancelledError:
        if not left.done():
            watch.end(STOPPED)
            yield _failed_event(_stopping(), kind)
    except Exception as error:  # the status is sent already
        failure = _failure(error)
        watch.end(_outcome(failure))
        yield _failed_event(failure, kind)
    finally:
        watch.left()  # where nothing else was the end
        job.cancel()
        left.cancel()


def _event(chunk: Mapping[str, Any], kind: Kind) -> bytes:
    name = f"event: {chunk['type']}\n".encode() if kind.is_named else b""
    return b"%bdata: %b\n\n" % (name, msgspec.json.encode(chunk))


def _failed_event(error: ApiError, kind: Kind) -> bytes:
    if not kind.is_named:
        return _event(error.body(), kind)
    fields = error.body()["error"]
    return _event({**fields, "type": "error"}, kind)
