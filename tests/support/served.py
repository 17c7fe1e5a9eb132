"""A target of the numpy engine, served over HTTP by a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starsd_edge.listening import bind
from starsd_jetson.api import OpenTarget
from starsd_jetson.serve.server import HttpServer, ServeSettings

DEADLINE_S = 60.0
"""A hang guard; nothing is decided by how long a thing takes."""


@dataclass(frozen=True)
class Served:
    """A server that listens.

    Attributes:
        url: of its API, with /v1.
    """

    port: int
    server: HttpServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, **options: Any) -> Any:
        """OpenAI's client for it."""
        import openai

        return openai.OpenAI(**{"base_url": self.url, "api_key": "none", "max_retries": 0} | options)


@contextmanager
def served(target: OpenTarget, settings: ServeSettings | None = None) -> Iterator[Served]:
    """Serve a target for as long as the block lasts."""
    listening = threading.Event()
    server = HttpServer(target, settings or ServeSettings(), listening.set)
    with bind("127.0.0.1", 0, has_token=True) as sock:
        thread = threading.Thread(target=lambda: server.run(sockets=[sock]), daemon=True)
        thread.start()
        assert listening.wait(DEADLINE_S)
        try:
            yield Served(sock.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the server did not end"
