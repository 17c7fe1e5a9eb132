"""A target of the numpy engine, served over HTTP by a thread of this process."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starsd_edge.listening import bind
from starsd_jetson.api import OpenTarget
from starsd_jetson.serve.server import HttpServer, ServeSettings

DEADLINE_S = 60.0
"""A hang guard; nothing is decided by how long a thing takes."""


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        """Its JSON."""
        return json.loads(self.data)

    @property
    def error(self) -> Any:
        """The error in it."""
        return self.body["error"]

    @property
    def events(self) -> list[Any]:
        """The data of its server-sent events; the end is the text "[DONE]"."""
        assert self.headers["content-type"].startswith("text/event-stream"), self
        blocks = self.data.decode().split("\n\n")
        assert blocks.pop() == ""
        lines = [line for block in blocks for line in block.split("\n") if line.startswith("data: ")]
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


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

    def ask(self, path: str, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST") -> Reply:
        """One request and its whole response.

        Args:
            body: bytes as they are, anything else as JSON; None sends none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, named, response.read())
        finally:
            connection.close()

    def page(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """One page."""
        return self.ask(path, None, headers, "GET")

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
