"""A Hub of one repository on loopback, with as much of its HTTP interface as huggingface_hub asks of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class FakeHub:
    """What the server offers and what it saw.

    Attributes:
        repository: ORG/NAME.
        files: contents by name.
        commit: what every revision in `revisions` resolves to.
        refusal: (status, X-Error-Code) of every answer, or None.
        requests: "METHOD path" of each request.
        tokens: Authorization headers seen.
    """

    def __init__(self, repository: str, files: dict[str, bytes]) -> None:
        self.repository = repository
        self.files = files
        self.commit = "c" * 40
        self.revisions = {"main", "v1"}
        self.refusal: tuple[int, str] | None = None
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.url = ""

    @property
    def fetched(self) -> set[str]:
        """Names of the files whose contents were asked for."""
        begins = f"GET /{self.repository}/resolve/"
        return {line.rpartition("/")[2] for line in self.requests if line.startswith(begins)}


def directory_files(directory: Path) -> dict[str, bytes]:
    """The files of a checkpoint directory."""
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it on a free port of loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve(body=True)

        def do_HEAD(self) -> None:
            self._serve(body=False)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

        def _serve(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization", ""))
            if hub.refusal:
                status, code = hub.refusal
                return self._send(status, b"{}", {"X-Error-Code": code}, body)
            api = f"/api/models/{hub.repository}"
            if path.startswith(f"{api}/revision/"):
                return self._revision(path.rpartition("/")[2], body)
            if path.startswith(f"{api}/tree/"):
                return self._json([_entry(name, data) for name, data in hub.files.items()], body)
            if path.startswith(f"/{hub.repository}/resolve/"):
                return self._file(path.rpartition("/")[2], body)
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

        def _revision(self, revision: str, body: bool) -> None:
            if revision not in {*hub.revisions, hub.commit}:
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            return self._json({"id": hub.repository, "sha": hub.commit, "siblings": siblings}, body)

        def _file(self, name: str, body: bool) -> None:
            if name not in hub.files:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            data = hub.files[name]
            return self._send(200, data, {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": hub.commit}, body)

        def _json(self, value: object, body: bool) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    return Handler


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
