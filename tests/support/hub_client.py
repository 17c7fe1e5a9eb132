"""A target reduced to its messages, for tests of the hub over real sockets; and a hub to talk to."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from starsd_edge.errors import UsageError
from starsd_edge.listening import bind
from starsd_edge.protocol.codec import decode_from_hub, encode
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
    Welcome,
)
from starsd_server.drafters.contract import Drafter, DrafterRegistry
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.hub import Hub
from starsd_server.offers import Offers
from starsd_server.settings import HubSettings

TOKENIZER_FP = "a" * 64
Kind = TypeVar("Kind", bound=HubMessage)


def hello(**changes: Any) -> Hello:
    """A HELLO of a small target, with some fields changed."""
    fields: dict[str, Any] = {
        "versions": [1],
        "target": "spoke",
        "vocab_size": 24,
        "tokenizer_fp": TOKENIZER_FP,
        "source_fp": "b" * 64,
        "feature_fp": "c" * 64,
        "feature_kind": "none",
        "feature_width": 0,
        "codecs": [],
        "max_tree": 16,
        "max_depth": 8,
        "max_context": 256,
    }
    return Hello(**{**fields, **changes})


class HubClient:
    """One connection to a hub."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    async def send(self, message: TargetMessage | bytes | str) -> None:
        """Send a message, or whatever bytes or text."""
        await self.websocket.send(message if isinstance(message, bytes | str) else encode(message))

    async def receive(self) -> HubMessage:
        """The next message of the hub."""
        frame = await asyncio.wait_for(self.websocket.recv(), 20)
        assert isinstance(frame, bytes)
        return decode_from_hub(frame)

    async def expect(self, kind: type[Kind]) -> Kind:
        """The next message that is not READY, which must be of this kind."""
        message = await self.receive()
        while isinstance(message, Ready) and kind is not Ready:
            message = await self.receive()
        assert isinstance(message, kind), message
        return message

    async def introduce(self, **changes: Any) -> Welcome:
        """HELLO, WELCOME."""
        await self.send(hello(**changes))
        return await self.expect(Welcome)

    async def open(self, tokens: Sequence[int], ref: int = 0) -> bytes:
        """Open a session whose text so far is `tokens` but for the rows, which the first request brings; its tag."""
        await self.send(Open(ref, 0, tokens[0]))
        return (await self.expect(Opened)).tag

    async def draft(
        self, tag: bytes, epoch: int, text: Sequence[int], new: int, shape: tuple[int, int, int] = (4, 4, 1)
    ) -> Draft:
        """Send the last `new` rows of a text and ask for a tree of (nodes, depth, branching) under its last token."""
        await self.ask(tag, epoch, text, new, shape)
        return await self.expect(Draft)

    async def receive_draft(self) -> Draft:
        """The DRAFT of an earlier `ask`."""
        return await self.expect(Draft)

    async def ask(
        self, tag: bytes, epoch: int, text: Sequence[int], new: int, shape: tuple[int, int, int] = (4, 4, 1)
    ) -> None:
        """As `draft`, without waiting for the answer."""
        rows = len(text) - 1
        ids = list(text[len(text) - new :]) if new else []
        await self.send(DraftRequest(tag, epoch, rows, rows - new, ids, *shape))

    async def extend(self, tag: bytes, first_row: int, ids: Sequence[int]) -> None:
        """Send rows."""
        await self.send(Extend(tag, first_row, list(ids)))

    async def close(self, tag: bytes) -> Closed:
        """End a session."""
        await self.send(Close(tag))
        return await self.expect(Closed)


class RunningHub:
    """A hub and how to reach it."""

    def __init__(self, hub: Hub, port: int) -> None:
        self.hub = hub
        self.port = port
        self.url = f"ws://127.0.0.1:{port}"

    @asynccontextmanager
    async def client(self, token: str | None = None, **options: Any) -> AsyncIterator[HubClient]:
        """A connected client that has said nothing yet."""
        async with connect_to(self.url, token, **options) as websocket:
            yield HubClient(websocket)

    async def client_websocket(self) -> ClientConnection:
        """A connection that the caller closes."""
        return await connect_to(self.url)

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body of a page."""
        return await http_get(self.port, path, headers)


def connect_to(url: str, token: str | None = None, **options: Any) -> connect:
    """The client side of a WebSocket as a target opens it."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    settings: dict[str, Any] = {
        "additional_headers": headers,
        "subprotocols": [Subprotocol(SUBPROTOCOL)],
        "compression": None,
        "proxy": None,
        "close_timeout": 1,
    }
    return connect(url, **{**settings, **options})


async def http_get(port: int, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body of a page on the hub's port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{name}: {value}" for name, value in {"Host": f"127.0.0.1:{port}", **headers}.items()]
    lines = [f"GET {path} HTTP/1.1", *lines, "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = (await asyncio.wait_for(reader.read(), 20)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def free_ports(count: int) -> range:
    """So many ports in a row that nobody listens on, below those that the kernel gives to clients.

    Each worker has a range of its own: between this look and the hub's, another one must not take them.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
    while True:
        ports = range(start := 20_000 + 2_000 * worker + random.randrange(1_900), start + count)
        with suppress(UsageError):
            for port in ports:
                bind("127.0.0.1", port, has_token=False).close()
            return ports


@asynccontextmanager
async def running_hub(
    drafters: Sequence[Drafter] = (),
    settings: HubSettings | None = None,
    required: bool = False,
    port: int = 0,
    clock: Callable[[], float] = time.monotonic,
    offers: Offers | None = None,
) -> AsyncIterator[RunningHub]:
    """A hub on a loopback port (0: a free one); it drafts by n-grams where nothing else is given or fits."""
    fallback = NgramDrafter(max_sessions=64)
    registry = DrafterRegistry(drafters or [fallback], fallback, required)
    sock: socket.socket = bind("127.0.0.1", port, has_token=False)
    hub = Hub(registry, settings or HubSettings(), clock, offers)
    await hub.start(sock)
    try:
        yield RunningHub(hub, sock.getsockname()[1])
    finally:
        await hub.stop()
