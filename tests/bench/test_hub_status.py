"""What a program reads of a hub: its books, how late it answers, how its memory grows."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from starsd_edge.cli.bench.star_probe import HubWatcher
from starsd_edge.errors import StarsdError
from starsd_edge.hub_process import read_status
from tests.support.hub_client import running_hub


async def test_the_books_of_a_hub_are_read() -> None:
    async with running_hub() as hub:
        facts = await asyncio.to_thread(read_status, hub.url)
        assert facts.hub_id == hub.hub.facts().hub_id
        assert [drafter.kind for drafter in facts.drafters] == ["ngram"]


async def test_a_hub_is_looked_at_from_beside_it() -> None:
    def look(port: int) -> tuple[float, float]:
        with HubWatcher(port) as probe:
            seen = probe.read()
        return seen.loop_lag_ms_p99, seen.memory_growth

    async with running_hub() as hub:
        lag_ms, growth = await asyncio.to_thread(look, hub.port)
    assert 0 < lag_ms < 60_000
    assert abs(growth) < 1


def test_no_hub_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(StarsdError, match="gives no status"):
        read_status(f"ws://127.0.0.1:{port}")
    with HubWatcher(port) as probe, pytest.raises(StarsdError, match="no answer to the probe"):
        probe.read()


def test_what_is_no_hub_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StarsdError, match="gives no status"):
            read_status(f"ws://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
