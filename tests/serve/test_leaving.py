"""Clients that leave, a queue that is full, a server that stops: work that nobody waits for is not done."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest

from starsd_jetson.serve import app
from starsd_jetson.serve.server import ServeSettings
from tests.serve.conftest import ServeEcho
from tests.support.echo_model import EchoEngine
from tests.support.served import Served

DEADLINE_S = 20.0
"""A hang guard, shorter than that of a client."""
CHAT = "/v1/chat/completions"


class HeldEngine(EchoEngine):
    """Makes a pass for each permit, so that a test decides how far an answer gets."""

    def __init__(self) -> None:
        super().__init__()
        self._permits = threading.Semaphore(0)
        self.asked = 0
        """Passes asked for, that which waits for its permit included."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        self.asked += 1
        assert self._permits.acquire(timeout=DEADLINE_S)
        return super().forward(*arguments, **named)

    def permit(self, passes: int) -> None:
        self._permits.release(passes)


@pytest.fixture(scope="module")
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture(scope="module")
def server(serve_echo: ServeEcho, engine: HeldEngine) -> Served:
    return serve_echo(engine=engine, settings=ServeSettings(queue=2, parallel=1), speculation=False)


def wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.002)


def body(message: str = "abcdefghij", **more: Any) -> dict[str, Any]:
    return {"model": "small", "temperature": 0, "messages": [{"role": "user", "content": message}], **more}


@contextmanager
def asking(server: Served, **more: Any) -> Iterator[HTTPConnection]:
    """A client that has asked, and leaves at the end of the block."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", CHAT, json.dumps(body(**more)))
    try:
        yield connection
    finally:
        connection.close()


def work(engine: HeldEngine, server: Served) -> int:
    """Passes that are made from here on, with as many permits as anybody may want, until nothing is left to do."""
    before = engine.asked
    engine.permit(500)
    wait_until(lambda: server.server.backend.running == 0 and server.server.backend.waiting == 0)
    while engine._permits.acquire(blocking=False):
        pass
    return engine.asked - before


def ended(server: Served) -> Counter[str]:
    """Requests by how they ended, as the metrics tell."""
    lines = server.page("/metrics").data.decode().splitlines()
    found = (re.fullmatch(r'starsd_requests_total\{outcome="(\w+)"\} (\d+)\.0', line) for line in lines)
    return Counter({each[1]: int(each[2]) for each in found if each})


def tokens(server: Served) -> int:
    """Tokens of all answers, as the metrics tell."""
    found = re.search(rb"^starsd_generation_tokens_total (\d+)\.0$", server.page("/metrics").data, re.MULTILINE)
    assert found
    return int(found[1])


def forgotten(server: Served) -> bool:
    """Whether the server has seen that a client is gone."""
    return server.server.backend.abandoned == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_costs_the_pass_at_work_and_no_more(
    server: Served, engine: HeldEngine, stream: bool
) -> None:
    begun, before, said = engine.asked, ended(server), tokens(server)
    with asking(server, stream=stream):
        wait_until(lambda: engine.asked == begun + 1)
    wait_until(lambda: forgotten(server))
    assert work(engine, server) == 0
    wait_until(lambda: ended(server) - before == Counter(left_before_first_token=1))
    wait_until(lambda: tokens(server) == said + 1)  # which was made, and read by nobody


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_answer(server: Served, engine: HeldEngine) -> None:
    begun, before, said = engine.asked, ended(server), tokens(server)
    with asking(server, stream=True) as connection:
        engine.permit(3)
        response = connection.getresponse()
        while (line := response.readline()) and b'"content":"c"' not in line:
            pass
        assert line
        wait_until(lambda: engine.asked == begun + 4)
    wait_until(lambda: forgotten(server))
    assert work(engine, server) == 0
    wait_until(lambda: ended(server) - before == Counter(left_after_first_token=1))
    wait_until(lambda: tokens(server) == said + 4)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_has_left_is_never_begun(server: Served, engine: HeldEngine, stream: bool) -> None:
    begun, before, said = engine.asked, ended(server), tokens(server)
    with asking(server, message="ab") as first:
        wait_until(lambda: engine.asked == begun + 1)
        with asking(server, stream=stream):
            wait_until(lambda: server.server.backend.waiting == 1)
        wait_until(lambda: forgotten(server))
        assert work(engine, server) == 2, "the rest of the first: a pass for each of two letters and the end, less one"
        assert json.loads(first.getresponse().read())["choices"][0]["message"]["content"] == "ab"
    wait_until(lambda: ended(server) - before == Counter(left_before_first_token=1, answered=1))
    assert tokens(server) == said + 2


def test_a_full_queue_says_when_to_come_back_and_what_was_taken_is_answered(server: Served, engine: HeldEngine) -> None:
    begun, before = engine.asked, ended(server)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.ask, CHAT, body("ab"))
        wait_until(lambda: engine.asked == begun + 1)
        others = [pool.submit(server.ask, CHAT, body(message)) for message in ("cd", "ef")]
        wait_until(lambda: server.server.backend.waiting == 2)
        for more in ({}, {"stream": True}, {"n": 3}):
            refused = server.ask(CHAT, body(**more))
            assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
            assert int(refused.headers["retry-after"]) >= 1
        assert b"starsd_num_requests_waiting 2.0" in server.page("/metrics").data
        assert b"starsd_num_requests_running 1.0" in server.page("/metrics").data
        work(engine, server)
        said = [each.result().body["choices"][0]["message"]["content"] for each in (first, *others)]
        assert said == ["ab", "cd", "ef"]
        engine.permit(500)
        assert len(server.ask(CHAT, body("x", n=5)).body["choices"]) == 5, "one that is idle takes any number"
        work(engine, server)
    assert ended(server) - before == Counter(answered=4, queue_full=3)


def test_two_requests_are_answered_by_turns(serve_echo: ServeEcho) -> None:
    engine = HeldEngine()
    server = serve_echo(engine=engine, settings=ServeSettings(queue=2, parallel=2), speculation=False)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.ask, CHAT, body("abcdefgh"))
        wait_until(lambda: engine.asked == 1)
        others = [pool.submit(server.ask, CHAT, body(message)) for message in ("cd", "ef")]
        wait_until(lambda: server.server.backend.waiting == 2)
        engine.permit(8)
        wait_until(lambda: others[0].done() or others[1].done())
        assert not first.done(), "the short one does not wait for the long one"
        engine.permit(500)
        said = [each.result().body["choices"][0]["message"]["content"] for each in (first, *others)]
    assert said == ["abcdefgh", "cd", "ef"]


def test_a_stream_that_waits_shows_that_it_is_there(
    server: Served, engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "KEEPALIVE_S", 0.01)
    with asking(server, message="ab", stream=True) as connection:
        response = connection.getresponse()
        assert response.readline() == b": waiting\n"
        work(engine, server)
        assert response.read().endswith(b"data: [DONE]\n\n")


def test_a_server_that_stops_says_so_to_who_waits(serve_echo: ServeEcho) -> None:
    engine = HeldEngine()
    server = serve_echo(engine=engine, speculation=False)
    with ThreadPoolExecutor() as pool:
        streamed = pool.submit(server.ask, CHAT, body(stream=True))
        wait_until(lambda: engine.asked == 1)
        whole = pool.submit(server.ask, CHAT, body())
        wait_until(lambda: server.server.backend.waiting == 1)
        server.server.should_exit = True
        *_, last = streamed.result().events
        assert (last["error"]["type"], whole.result().status) == ("server_error", 503)
        engine.permit(500)
    assert engine.asked == 1
