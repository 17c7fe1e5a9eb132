"""A served target: what stands behind the HTTP API, and the process that speaks HTTP."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from string import ascii_letters, digits

import uvicorn

from starsd_jetson.api import OpenTarget, RequestLimits
from starsd_jetson.serve.app import Api, Model, build_app
from starsd_jetson.serve.backend import TargetBackend
from starsd_jetson.serve.door import DoorRules
from starsd_jetson.serve.metrics import ServeMetrics, State
from starsd_jetson.serve.prepare import Preparer

DEFAULT_QUEUE = 16
"""Requests that may wait, where nothing is said."""
DEFAULT_PARALLEL = 4
"""Requests that are worked at by turns, where nothing is said. Two or three fill the time in which one waits for its
draft; more wait less for their first token, and share the rest.
"""
_CLOSE_S = 5.0
"""Seconds that responses have to end in when the server stops. What is left then is cut."""
_MAX_CONNECTIONS = 256
"""Connections at a time: each may hold a body in memory."""
_LIBRARY = "uvicorn"
"""It writes addresses and tracebacks; what matters of them is in our own log."""
_FINGERPRINT_LETTERS = 12
_LETTERS = ascii_letters + digits


@dataclass(frozen=True)
class ServeSettings:
    """How a target is served.

    Attributes:
        names: what clients may call the model, the one that responses show first; none takes the bundle's name.
        queue: requests that may wait.
        parallel: requests that are worked at by turns.
        kv_tokens: see `RequestLimits`.
    """

    names: Sequence[str] = ()
    queue: int = DEFAULT_QUEUE
    parallel: int = DEFAULT_PARALLEL
    kv_tokens: int | None = None
    door: DoorRules = field(default_factory=DoorRules)


def serve(
    target: OpenTarget, settings: ServeSettings, sock: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, which is raised again at the end.

    Args:
        sock: bound, not listening yet.
        ready: called once the server listens.
    """
    HttpServer(target, settings, ready).run(sockets=[sock])


class HttpServer(uvicorn.Server):
    """The process's HTTP side. `should_exit` ends it from another thread.

    Attributes:
        backend: answers its requests.
    """

    def __init__(self, target: OpenTarget, settings: ServeSettings, ready: Callable[[], None] = lambda: None) -> None:
        limits = RequestLimits(settings.parallel, settings.queue, settings.kv_tokens)
        self.backend = TargetBackend(target.requests(limits))
        app = build_app(_api(target, settings, self.backend), settings.door, self.backend.close)
        logging.getLogger(_LIBRARY).setLevel(logging.CRITICAL)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=int(_CLOSE_S),
                lifespan="on",
                ws="none",
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the answers, so that their connections end, and stop."""
        self.backend.cancel_all()
        await super().shutdown(sockets)


def model_names(target: OpenTarget, settings: ServeSettings) -> Sequence[str]:
    """What clients may call the model."""
    return settings.names or (target.target.bundle.manifest.name,)


def _api(target: OpenTarget, settings: ServeSettings, backend: TargetBackend) -> Api:
    names = model_names(target, settings)
    source = target.target.bundle.manifest.fingerprints.source_fp
    model = Model(names, int(time.time()), f"starsd_{source[:_FINGERPRINT_LETTERS]}", target.context)

    def hub_is_up() -> bool | None:
        return None if target.link is None else target.link.welcome is not None

    metrics = ServeMetrics(names[0], lambda: State(backend.running, backend.waiting, hub_is_up()))
    backend.on_answer = metrics.answered
    preparer = Preparer(target, names, lambda: secrets.randbits(64))
    return Api(model, target.target.tokenizer, preparer, backend, metrics, hub_is_up=hub_is_up, new_id=new_id)


def new_id(length: int) -> str:
    """A random id of letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
