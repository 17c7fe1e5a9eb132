"""A hub over a real socket that answers by a script: honest, hostile, slow, silent, or gone in the middle."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from starsd_edge.protocol.messages import (
    SUBPROTOCOL,
    Close,
    Closed,
    Draft,
    DraftRequest,
    Extend,
    Hello,
    HubMessage,
    Open,
    Opened,
    Ready,
    TargetMessage,
    Tensor,
    Welcome,
)
from starsd_edge.speculation.tree import DraftTree

_decoder = msgspec.msgpack.Decoder(TargetMessage)


def frame(message: HubMessage) -> bytes:
    """What goes over the wire."""
    return msgspec.msgpack.encode(message)


@dataclass
class HubSession:
    """What the hub was told of one session."""

    tag: bytes
    text: list[int]
    features: list[Tensor] = field(default_factory=list)
    closed: bool = False


@dataclass(frozen=True)
class Asked:
    """A draft request, the text it belongs to, and how many the hub had before it (all connections)."""

    request: DraftRequest
    text: tuple[int, ...]
    earlier: int

    def draft(self, tree: DraftTree, **changes: object) -> bytes:
        """The frame that answers it, with some fields changed."""
        honest = Draft(
            tag=self.request.tag,
            epoch=self.request.epoch,
            base_len=self.request.base_len,
            ids=tree.tokens.tolist(),
            parents=tree.parents.tolist(),
            queue_us=1,
            service_us=2,
            hub_us=3,
        )
        return frame(msgspec.structs.replace(honest, **changes))


class LeaveError(Exception):
    """Raised by a script: cut the connection here."""


Reply = bytes | str | float
"""A frame, a text message, or a pause in seconds."""
Script = Callable[[Asked], Iterable[Reply]]


class ScriptedHub:
    """Listens on loopback until `stop`; what it saw is for the test to look at.

    Args:
        script: the replies to a draft request, in order.
        hub_id, feature_codec: of its WELCOME.
        warm: whether READY follows.
        stalls: it reads nothing after the first OPEN.
        on_hello: replies instead of WELCOME and READY.
        status: HTTP status with which every handshake is refused.
        subprotocol: whether it speaks ours.
    """

    def __init__(
        self,
        script: Script = lambda asked: (),
        *,
        port: int = 0,
        hub_id: str = "first",
        feature_codec: str = "none",
        warm: bool = True,
        on_hello: Callable[[Hello], Iterable[Reply]] | None = None,
        status: int | None = None,
        subprotocol: bool = True,
        stalls: bool = False,
    ) -> None:
        self._script = script
        self._welcome = Welcome(1, hub_id, "scripted", "d" * 64, feature_codec, 10.0, 16, 64, 16)
        self._warm = warm
        self._on_hello = on_hello
        self._status = status
        self._subprotocol = subprotocol
        self._stalls = stalls
        self._sock = socket.create_server(("127.0.0.1", port))
        self.port: int = self._sock.getsockname()[1]
        self.sessions: dict[bytes, HubSession] = {}
        self.hellos: list[Hello] = []
        self.opens: list[Open] = []
        self.requests: list[DraftRequest] = []
        self.request_bytes: list[int] = []
        self.headers: list[Request] = []
        self.rows_in_order = True
        self.opened = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._gone = asyncio.Event()
        self._connections: set[ServerConnection] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedHub:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Die: every connection is cut, the port is free."""
        with suppress(RuntimeError):  # it was stopped before
            self._loop.call_soon_threadsafe(self._gone.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server: Server = await serve(
            self._talk,
            sock=self._sock,
            subprotocols=[Subprotocol(SUBPROTOCOL)] if self._subprotocol else None,
            process_request=self._gate,
            compression=None,
            close_timeout=0.2,
        )
        await self._gone.wait()
        for connection in self._connections:
            connection.transport.abort()
        server.close()
        await server.wait_closed()

    def _gate(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request)
        return None if self._status is None else connection.respond(self._status, "no\n")  # type: ignore[arg-type]

    async def _talk(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        try:
            async for data in connection:
                assert isinstance(data, bytes)
                for reply in self._replies(_decoder.decode(data), len(data)):
                    if isinstance(reply, float):
                        await asyncio.sleep(reply)
                    else:
                        await connection.send(reply)
                if self._stalls and self.opened.is_set():
                    await self._gone.wait()
        except LeaveError:
            connection.transport.abort()
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)

    def _replies(self, message: TargetMessage, size: int) -> Iterable[Reply]:
        if isinstance(message, Hello):
            self.hellos.append(message)
            if self._on_hello is not None:
                return self._on_hello(message)
            return [frame(self._welcome), *([frame(Ready("scripted"))] if self._warm else [])]
        if isinstance(message, Open):
            return [self._open(message)]
        if isinstance(message, Extend):
            self._take(message.tag, message.first_row, message.ids, message.features)
            return []
        if isinstance(message, DraftRequest):
            self.requests.append(message)
            self.request_bytes.append(size)
            session = self._take(message.tag, message.first_row, message.ids, message.features)
            return self._script(Asked(message, tuple(session.text), len(self.requests) - 1))
        if isinstance(message, Close) and message.tag in self.sessions:
            self.sessions[message.tag].closed = True
            return [frame(Closed(message.tag, len(self.sessions[message.tag].text)))]
        return []

    def _open(self, message: Open) -> bytes:
        self.opens.append(message)
        session = self.sessions.get(message.resume or b"")
        if session is None:
            session = HubSession(secrets.token_bytes(16), [message.t_first])
            self.sessions[session.tag] = session
        self.opened.set()
        return frame(Opened(message.ref, session.tag, len(session.text) - 1))

    def _take(self, tag: bytes, first_row: int, ids: Sequence[int], features: Tensor | None) -> HubSession:
        session = self.sessions[tag]
        self.rows_in_order &= first_row == len(session.text) - 1
        session.text.extend(ids)
        if features is not None:
            session.features.append(msgspec.structs.replace(features, data=memoryview(bytes(features.data))))
        return session
