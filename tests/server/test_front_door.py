"""The front door over real loopback sockets: who gets in, who is shown out, and that the others notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import Opcode

from starsd_edge.listening import bind
from starsd_edge.protocol.codes import CLOSE_STUCK
from starsd_edge.protocol.messages import MAX_FRAME_BYTES
from starsd_server.front_door import FrontDoor, Page
from starsd_server.peer import Peer
from starsd_server.settings import DoorSettings
from tests.support.hub_client import connect_to, http_get

TOKEN = "correct-horse-battery-staple"
PATIENCE_S = 20


class Echo:
    """A handler that says back what it hears, or floods who asks for it."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []

    def connected(self, peer: Peer) -> None:
        self.peers.append(peer)

    def received(self, peer: Peer, frame: bytes) -> None:
        if frame.startswith(b"flood"):
            for _ in range(int(frame[5:])):
                peer.send(bytes(256 << 10))
        elif frame == b"fault":
            raise KeyError(frame)
        elif frame == b"bye":
            peer.send(b"last words")
            peer.hang_up(4002, "that was all")
        else:
            peer.send(frame)

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def public_page(self, path: str) -> Page | None:
        return Page(HTTPStatus.OK, "alive") if path == "/healthz" else None

    def private_page(self, path: str) -> Page | None:
        return Page(HTTPStatus.OK, "{}", "application/json") if path == "/status" else None


class House:
    """A front door and its handler."""

    def __init__(self, door: FrontDoor, echo: Echo, port: int) -> None:
        self.door = door
        self.echo = echo
        self.port = port

    def connect(self, token: str | None = None, **options: Any) -> Any:
        return connect_to(f"ws://127.0.0.1:{self.port}", token, **options)


@asynccontextmanager
async def house(heartbeat_s: float = 10.0, **settings: Any) -> AsyncIterator[House]:
    echo = Echo()
    # Who waits while others misbehave is not let go for its silence, however long a loaded machine takes.
    rules = DoorSettings(**{"hello_timeout_s": PATIENCE_S, **settings})
    door = FrontDoor(rules, heartbeat_s, echo, time.monotonic)
    sock = bind("127.0.0.1", 0, has_token=False)
    await door.open(sock)
    try:
        yield House(door, echo, sock.getsockname()[1])
    finally:
        await asyncio.wait_for(door.close(), PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE_S)


async def is_served(websocket: Any) -> bool:
    await websocket.send(b"hello?")
    return bool(await asyncio.wait_for(websocket.recv(), PATIENCE_S) == b"hello?")


async def close_code(receive: Callable[[], Awaitable[Any]]) -> int | None:
    """The code with which the hub ends the connection."""

    async def listen() -> None:
        while True:
            await asyncio.wait_for(receive(), PATIENCE_S)

    with pytest.raises(ConnectionClosed) as ended:
        await listen()
    return None if ended.value.rcvd is None else ended.value.rcvd.code


async def status_of(attempt: Any) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await attempt
    return int(refused.value.response.status_code)


async def test_small_frames_leave_at_once_and_dead_peers_are_noticed() -> None:
    async with house(heartbeat_s=7.0) as home, home.connect() as websocket:
        assert await is_served(websocket)
        sock = home.echo.peers[0]._connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 14_000


async def test_frames_are_never_deflated() -> None:
    async with house() as home, home.connect(compression="deflate") as websocket:
        assert await is_served(websocket)
        assert websocket.protocol.extensions == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer é"},
    ],
)
async def test_without_the_right_token_nobody_gets_in(headers: dict[str, str]) -> None:
    async with house(token=TOKEN) as home:
        assert await status_of(home.connect(additional_headers=headers)) == 401
        assert (await http_get(home.port, "/status", headers))[0] == 401
        assert home.door.auth_failures == 2
        assert home.echo.peers == []


async def test_two_tokens_are_no_token() -> None:
    async with house(token=TOKEN) as home:
        twice = [("Authorization", f"Bearer {TOKEN}")] * 2
        assert await status_of(home.connect(additional_headers=twice)) == 401


async def test_the_right_token_opens_the_door() -> None:
    async with house(token=TOKEN) as home, home.connect(TOKEN) as websocket:
        assert await is_served(websocket)
        assert await http_get(home.port, "/status", {"Authorization": f"Bearer {TOKEN}"}) == (200, "{}")


async def test_health_needs_no_token() -> None:
    async with house(token=TOKEN) as home:
        assert await http_get(home.port, "/healthz", {}) == (200, "alive")
        assert await http_get(home.port, "/healthz?x=1", {}) == (200, "alive")


async def test_a_browser_is_refused_even_with_the_token() -> None:
    async with house(token=TOKEN) as home:
        assert await status_of(home.connect(TOKEN, origin="https://evil.example")) == 403
        headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "null"}
        assert (await http_get(home.port, "/status", headers))[0] == 403


async def test_other_paths_do_not_exist() -> None:
    async with house() as home:
        assert (await http_get(home.port, "/etc/passwd", {}))[0] == 404
        assert await status_of(connect_to(f"ws://127.0.0.1:{home.port}/other")) == 404


async def test_another_subprotocol_is_no_conversation() -> None:
    async with house() as home:
        with pytest.raises(InvalidHandshake):
            await home.connect(subprotocols=["chat"])
        with pytest.raises(InvalidHandshake):
            await home.connect(subprotocols=None)


async def test_a_full_house_says_try_later_until_somebody_leaves() -> None:
    async with house(max_connections=2) as home:
        async with home.connect() as first, home.connect() as second:
            assert await status_of(home.connect()) == 503
            assert home.door.turned_away == 1
            assert await is_served(first)
            assert await is_served(second)
            assert (await http_get(home.port, "/healthz", {}))[0] == 200
        await until(lambda: len(home.echo.gone) == 2)
        async with home.connect() as third:
            assert await is_served(third)


async def test_connections_that_say_nothing_are_capped_too() -> None:
    async with house(max_sockets=3) as home, home.connect() as good:
        silent = [await asyncio.open_connection("127.0.0.1", home.port) for _ in range(4)]
        await until(lambda: home.door.turned_away == 2)
        assert await is_served(good)
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("opening", [b"", b"GET / HTTP/1.1\r\nHost: hub\r\n"])
async def test_silent_tcp_is_ended_and_holds_nobody_up(opening: bytes) -> None:
    async with house(open_timeout_s=0.4) as home:
        reader, writer = await asyncio.open_connection("127.0.0.1", home.port)
        writer.write(opening)
        async with home.connect() as good:
            assert await is_served(good)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


async def test_a_hello_that_never_comes_ends_the_connection() -> None:
    async with house(hello_timeout_s=0.2) as home, home.connect() as good:
        assert await is_served(good)
        async with home.connect() as mute:
            assert await close_code(mute.recv) == 1008
            assert mute.close_reason == "no HELLO within 0.2 s"
        assert await is_served(good)  # silence after the first message is nothing wrong


async def test_text_and_oversized_messages_cost_the_connection_that_sent_them() -> None:
    async with house() as home, home.connect() as good:
        async with home.connect() as talker:
            await talker.send("hello")
            assert await close_code(talker.recv) == 1003
        async with home.connect() as shouter:
            with contextlib.suppress(ConnectionClosed):
                await shouter.send(bytes(MAX_FRAME_BYTES + 1))
            assert await close_code(shouter.recv) == 1009
        assert await is_served(good)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x82\x05hello",  # not masked
        b"\x83\x85\0\0\0\0hello",  # unknown opcode
        b"\xc2\x85\0\0\0\0hello",  # RSV bit of an extension that was not agreed on
        b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",  # 2^63 bytes announced
        b"\x89\xfe\x10\x00\0\0\0\0" + bytes(4096),  # a ping longer than pings may be
        b"\x80\x85\0\0\0\0hello",  # the continuation of nothing
    ],
)
async def test_broken_frames_cost_the_connection_that_sent_them(junk: bytes) -> None:
    async with house() as home, home.connect() as good, home.connect() as bad:
        assert await is_served(bad)
        bad.transport.write(junk)
        assert await close_code(bad.recv) in (1002, 1009)
        assert await is_served(good)


async def test_a_fault_of_our_own_costs_one_connection() -> None:
    async with house() as home, home.connect() as good, home.connect() as unlucky:
        await unlucky.send(b"fault")
        assert await close_code(unlucky.recv) == 1011
        assert await is_served(good)


async def test_what_was_sent_before_goodbye_arrives_before_it() -> None:
    async with house() as home, home.connect() as websocket:
        await websocket.send(b"bye")
        assert await websocket.recv() == b"last words"
        assert await close_code(websocket.recv) == 4002
        assert websocket.close_reason == "that was all"


def stalled(home: House) -> Any:
    """A client whose process stands still as far as its socket goes: nothing is read any more."""
    return home.connect(max_queue=1, ping_interval=None)


async def test_a_reader_behind_is_not_cut_off_but_nothing_more_is_read_from_it() -> None:
    """3 MB for it, more than its buffers hold, and more frames than the window."""
    async with house(max_waiting_frames=8, send_timeout_s=60) as home, home.connect() as good:
        async with stalled(home) as slow:
            slow.transport.pause_reading()
            await slow.send(b"flood64")
            await until(lambda: bool(home.echo.peers) and home.echo.peers[-1].traffic.frames_in == 1)
            for _ in range(20):
                await slow.send(b"more")
            assert await is_served(good)
            assert home.echo.peers[-1].traffic.frames_in == 1
            slow.transport.resume_reading()
            sizes = [len(await asyncio.wait_for(slow.recv(), PATIENCE_S)) for _ in range(64 + 20)]
            assert sizes == [256 << 10] * 64 + [4] * 20
        assert await is_served(good)


@pytest.mark.parametrize("count", [64, 80, 1000])
async def test_a_target_that_reads_is_answered_however_much_it_sends_at_once(count: int) -> None:
    async with house() as home, home.connect(max_queue=None) as eager:
        await asyncio.gather(*(eager.send(b"%d" % number) for number in range(count)))
        answers = [await asyncio.wait_for(eager.recv(), PATIENCE_S) for _ in range(count)]
        assert answers == [b"%d" % number for number in range(count)]


async def test_a_reader_that_takes_nothing_in_is_told_so_if_it_reads_again() -> None:
    async with house(send_timeout_s=0.4, heartbeat_s=60) as home, stalled(home) as slow:
        slow.transport.pause_reading()
        await slow.send(b"flood200")
        await until(lambda: bool(home.echo.peers) and home.echo.peers[0].leaving)
        slow.transport.resume_reading()
        assert await close_code(slow.recv) == CLOSE_STUCK
        assert slow.close_reason == "it took nothing in for 0.4 s"


def without_pongs(websocket: Any) -> Any:
    """A client whose answers to pings are stuck for ever."""
    send_frame = websocket.protocol.send_frame
    websocket.protocol.send_frame = lambda frame: None if frame.opcode is Opcode.PONG else send_frame(frame)
    return websocket


async def test_what_arrives_is_life_though_no_ping_is_answered_and_silence_is_none() -> None:
    async with house(heartbeat_s=1.0) as home, home.connect(ping_interval=None) as slow:
        async with home.connect(ping_interval=None) as silent:
            assert await is_served(without_pongs(silent))
            without_pongs(slow)
            listening = asyncio.ensure_future(close_code(silent.recv))
            while not listening.done():
                assert await is_served(slow)
                await asyncio.sleep(0.05)
            assert (listening.result(), silent.close_reason) == (CLOSE_STUCK, "nothing came from it for 2 s")
        assert await is_served(slow)


@pytest.mark.parametrize("last", [b"bye", b"hello?"])
async def test_what_is_still_to_be_sent_to_one_that_has_left_keeps_nothing(last: bytes) -> None:
    """More drafts than the window come after goodbye, or after the connection broke."""
    async with house(max_waiting_frames=8) as home:
        websocket = await home.connect()
        await websocket.send(last)
        await websocket.recv()
        (peer,) = home.echo.peers
        for _ in range(20):
            with contextlib.suppress(ConnectionClosed):
                await websocket.send(b"more")
            peer.send(b"a draft")
            await asyncio.sleep(0)
        websocket.transport.abort()
        while not home.echo.gone:
            peer.send(b"a draft")
            await asyncio.sleep(0.001)
        assert home.echo.gone == [peer]


async def test_pings_of_a_peer_that_reads_nothing_do_not_fill_the_memory() -> None:
    async with house() as home, home.connect() as good, stalled(home) as flood:
        assert await is_served(flood)
        flood.transport.pause_reading()
        ping = b"\x89\xfd\0\0\0\0" + bytes(125)
        while not home.echo.gone:
            flood.transport.write(ping * 1000)
            await asyncio.sleep(0)
        assert await is_served(good)


async def test_a_hub_that_stood_still_cuts_nobody_off() -> None:
    async with house(heartbeat_s=0.25) as home, home.connect() as websocket:
        assert await is_served(websocket)
        for _ in range(3):
            time.sleep(1.0)
            await asyncio.sleep(0.1)
            assert await is_served(websocket)


async def test_a_reader_that_stands_still_is_cut_off_when_a_send_takes_too_long() -> None:
    async with house(max_waiting_frames=1024, send_timeout_s=0.4, heartbeat_s=60) as home, home.connect() as good:
        async with stalled(home) as slow:
            slow.transport.pause_reading()
            await slow.send(b"flood200")  # 50 MB: more than all the buffers between here and there
            while not home.echo.gone:
                assert await is_served(good)
        assert await is_served(good)


async def test_a_peer_that_leaves_without_goodbye_is_let_go() -> None:
    async with house() as home, home.connect() as good:
        websocket = await home.connect()
        assert await is_served(websocket)
        websocket.transport.abort()
        await until(lambda: len(home.echo.gone) == 1)
        assert len(home.echo.peers) == 2
        assert await is_served(good)


async def test_a_closing_house_says_going_away_to_everybody() -> None:
    async with house() as home:
        websockets = [await home.connect() for _ in range(3)]
        await asyncio.wait_for(home.door.close(), PATIENCE_S)
        assert [await close_code(websocket.recv) for websocket in websockets] == [1001] * 3
        with pytest.raises(OSError, match=r"refused|failed"):
            await home.connect()


async def test_a_closing_house_does_not_wait_for_peers_that_stand_still() -> None:
    async with house(close_timeout_s=0.3, send_timeout_s=60, max_waiting_frames=1024) as home, stalled(home) as slow:
        slow.transport.pause_reading()
        await slow.send(b"flood200")
        await until(lambda: bool(home.echo.peers) and home.echo.peers[0].traffic.frames_in == 1)
        _, writer = await asyncio.open_connection("127.0.0.1", home.port)
        await asyncio.wait_for(home.door.close(), PATIENCE_S)
        assert home.echo.gone == home.echo.peers
        writer.close()
