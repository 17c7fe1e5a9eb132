"""The link over a real WebSocket: what any hub does changes no answer, and drafts are used again once a hub is back."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from starsd_edge.protocol.messages import WIRE_VERSION, Error, Hello, Welcome
from starsd_edge.protocol.target_side import TargetEvent
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson import hub_link, hub_socket
from starsd_jetson.decoder import Answer, Piece, Request, decode
from starsd_jetson.drafting import NgramDrafts
from starsd_jetson.hub_address import HubAddress
from starsd_jetson.hub_drafting import HubDrafts
from starsd_jetson.hub_endings import HubError
from starsd_jetson.hub_link import HubLink
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.decoding import PROMPT, Plain, letters, next_token, plain_answer, request
from tests.support.draft_sources import future
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import Asked, LeaveError, Reply, Script, ScriptedHub, frame
from tests.support.trees import random_tree, tree_of

WELCOMED_IN_S = 20
"""Generous: only a broken link waits this long."""


class SlowEngine(PrefixEngine):
    """A pass takes longer than a hub on the same machine needs, as with any real model."""

    def forward(self, *arguments, **named):  # type: ignore[no-untyped-def]
        time.sleep(0.004)
        return super().forward(*arguments, **named)


def hello(engine: PrefixEngine, shape: DraftShape) -> Hello:
    width = engine.spec.feature_width
    return Hello(
        [WIRE_VERSION], "test", 24, "t", "s", "f", "last_hidden" if width else "none", width, ["f2"] if width else [],
        shape.max_nodes + 1, shape.max_depth, 256, shape.branching == 1, dedicated=True,
    )  # fmt: skip


class Side:
    """The target's side of one link."""

    def __init__(
        self, url: str, engine: PrefixEngine, wanted: Request, token: str | None = None, uniform: float = 0.2
    ) -> None:
        self.engine = engine
        self.wanted = wanted
        self.notices: list[str] = []
        self.link = HubLink(
            HubAddress(url, token), hello(engine, wanted.shape), self.notices.append, time.monotonic, lambda: uniform
        )
        self.source = HubDrafts(self.link.open_channel, NgramDrafts(), WaitPolicy(), time.monotonic)

    def answer(self, on_piece: Callable[[Piece], None] = lambda piece: None) -> Answer:
        return decode(self.engine, letters([]), self.wanted, self.source, clock=time.monotonic, on_piece=on_piece)

    def expected(self) -> Plain:
        return plain_answer(self.engine, letters([]), self.wanted)


@contextmanager
def linked(url: str, engine: PrefixEngine | None = None, wanted: Request | None = None) -> Iterator[Side]:
    side = Side(url, engine or PrefixEngine(), wanted or request())
    with side.link:
        side.link.wait_for_hub(WELCOMED_IN_S)
        yield side
    assert not any(thread.name == "hub-link" for thread in threading.enumerate())


def knowing(engine: PrefixEngine, sampling: SamplingParams, wrong: int = 21) -> Script:
    """The true future, as a tree with wrong branches where branches are allowed."""

    def script(asked: Asked) -> Iterable[Reply]:
        wanted = asked.request
        true = future(lambda text: next_token(engine, sampling, text), asked.text, wanted.max_depth)
        paths = [true] if wanted.branching == 1 else [[wrong], true, [*true[:1], wrong]]
        yield asked.draft(tree_of(paths).clip(wanted.max_nodes, wanted.max_depth))

    return script


@pytest.mark.parametrize("shape", [DraftShape(4, 4, 1), DraftShape(12, 4, 3)])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_good_hub_is_used(temperature: float, shape: DraftShape) -> None:
    engine = SlowEngine(1)
    wanted = request(sampling=SamplingParams(temperature, seed=3), shape=shape, max_tokens=60)
    with ScriptedHub(knowing(engine, wanted.sampling)) as hub, linked(hub.url, engine, wanted) as side:
        answer = side.answer()
        assert Plain.of(answer) == side.expected()
        assert answer.stats.by_origin["hub"] > 0
        assert answer.stats.tokens_per_round > 2
        again = side.answer()  # the same link, another session
        assert Plain.of(again) == Plain.of(answer)
        figures = side.link.figures
    assert hub.rows_in_order
    assert [session.closed for session in hub.sessions.values()] == [True, True]
    assert next(iter(hub.sessions.values())).text[: len(PROMPT)] == list(PROMPT)
    assert figures.tcp is not None
    assert 0 < figures.tcp.min_rtt_s <= figures.tcp.rtt_s + 1
    assert (figures.drafter, figures.connections) == ("scripted", 1)


def test_bytes_per_round_do_not_grow_with_the_text() -> None:
    engine = SlowEngine(2, max_context=1024)
    wanted = request(max_tokens=300, context=1024)
    with ScriptedHub(knowing(engine, wanted.sampling)) as hub, linked(hub.url, engine, wanted) as side:
        answer = side.answer()
    assert answer.stats.bytes_up > 0
    # Beside a byte for each new token, numbers take some bytes more as they grow; no token goes up twice.
    others = [size - len(sent.ids) for size, sent in zip(hub.request_bytes, hub.requests, strict=True)][1:]
    assert max(others) < 60
    assert max(others) <= min(others) + 10
    assert sum(len(sent.ids) for sent in hub.requests) <= len(wanted.prompt) + len(answer.token_ids)


def test_features_go_up_with_their_rows() -> None:
    engine = SlowEngine(3, feature_width=4, max_chunk=6)
    wanted = request(max_tokens=30)
    with (
        ScriptedHub(knowing(engine, wanted.sampling), feature_codec="f2") as hub,
        linked(hub.url, engine, wanted) as side,
    ):
        side.answer()
    session = next(iter(hub.sessions.values()))
    rows = np.concatenate([np.frombuffer(part.data, "<f2").reshape(part.shape) for part in session.features])
    assert len(rows) == len(session.text) - 1
    expected = [engine.prefix_features(session.text[: row + 1]) for row in range(len(rows))]
    assert np.array_equal(rows, np.array(expected))


# Hubs that do not behave.


def malformed(asked: Asked) -> Iterable[Reply]:
    rng = random.Random(asked.earlier)
    honest = asked.draft(DraftTree.chain([1, 2]))
    yield rng.choice(
        [
            rng.randbytes(40),
            honest[: rng.randrange(len(honest))],
            b"",
            "text",
            asked.draft(DraftTree.chain([1, 2]), parents=[1, 0]),
            asked.draft(DraftTree.chain([1, 2]), parents=[-1]),
            asked.draft(DraftTree.chain([1, 2]), ids=[1, 24]),
            asked.draft(DraftTree.chain([1] * 900)),
            asked.draft(DraftTree.chain([1]), base_len=asked.request.base_len + 1),
        ]
    )


def foreign(asked: Asked) -> Iterable[Reply]:
    yield asked.draft(DraftTree.chain([1, 2]), tag=b"f" * 16)
    yield asked.draft(DraftTree.chain([1, 2]), epoch=asked.request.epoch + 5)
    yield asked.draft(DraftTree.chain([1, 2]), epoch=max(0, asked.request.epoch - 1))


def duplicated(asked: Asked) -> Iterable[Reply]:
    yield from [asked.draft(DraftTree.chain([1, 2]))] * 3


def oversized(asked: Asked) -> Iterable[Reply]:
    yield b"\0" * (1 << 21)


def guessing(asked: Asked) -> Iterable[Reply]:
    rng = np.random.default_rng(asked.earlier)
    wanted = asked.request
    yield asked.draft(random_tree(rng, DraftShape(wanted.max_nodes, wanted.max_depth, wanted.branching), 24))


def late(asked: Asked) -> Iterable[Reply]:
    yield 0.08
    yield from guessing(asked)


def leaving(asked: Asked) -> Iterable[Reply]:
    if asked.earlier % 3 == 1:
        raise LeaveError
    yield from guessing(asked)


def failing(asked: Asked) -> Iterable[Reply]:
    yield frame(Error("drafter_failed", "no more drafts", "session", asked.request.tag, asked.request.epoch))


def refusing(asked: Asked) -> Iterable[Reply]:
    yield frame(Error("base_len", "not like this", "frame", asked.request.tag, asked.request.epoch))


HOSTILE: dict[str, Script] = {
    "malformed": malformed,
    "foreign": foreign,
    "duplicated": duplicated,
    "oversized": oversized,
    "guessing": guessing,
    "late": late,
    "leaving": leaving,
    "failing": failing,
    "refusing": refusing,
    "silent": lambda asked: (),
}


@pytest.mark.parametrize("shape", [DraftShape(4, 4, 1), DraftShape(12, 4, 3)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_hub_changes_the_text(name: str, temperature: float, shape: DraftShape) -> None:
    wanted = request(sampling=SamplingParams(temperature, seed=5), shape=shape)
    with ScriptedHub(HOSTILE[name]) as hub, linked(hub.url, SlowEngine(4), wanted) as side:
        assert Plain.of(side.answer()) == side.expected()
        assert hub.requests


def test_late_drafts_are_rebased_and_used() -> None:
    """Each draft arrives two or so plain rounds late, and is deep enough to reach beyond them."""
    engine = SlowEngine(5)
    wanted = request(max_tokens=80, shape=DraftShape(12, 12))
    honest = knowing(engine, wanted.sampling)

    def script(asked: Asked) -> Iterable[Reply]:
        yield 0.012
        yield from honest(asked)

    with ScriptedHub(script) as hub, linked(hub.url, engine, wanted) as side:
        side.source._wait_policy.wait_s = lambda *_: 0.0  # type: ignore[method-assign]
        answer = side.answer()
        assert Plain.of(answer) == side.expected()
    assert answer.stats.late > 0
    assert answer.stats.accepted > 0


def test_hub_that_dies_and_comes_back_drafts_again() -> None:
    engine = SlowEngine(6)
    wanted = request(max_tokens=100)
    script = knowing(engine, wanted.sampling)
    first = ScriptedHub(script)
    second: list[ScriptedHub] = []
    told = 0

    def on_piece(piece: Piece) -> None:
        nonlocal told
        told += len(piece.tokens)
        if told >= 30 and not second:
            first.stop()
            second.append(ScriptedHub(script, port=first.port, hub_id="second"))
            assert second[0].opened.wait(WELCOMED_IN_S)

    with linked(first.url, engine, wanted) as side:
        answer = side.answer(on_piece)
        assert Plain.of(answer) == side.expected()
        notices = list(side.notices)
        figures = side.link.figures
    second[0].stop()
    assert first.requests
    assert second[0].requests, "speculation did not resume"
    assert second[0].opens[0].resume is None
    assert next(iter(second[0].sessions.values())).text[: len(PROMPT)] == list(PROMPT)
    assert figures.connections == 2
    assert figures.tcp is not None
    assert [line for line in notices if "lost" in line]
    assert "restart" in notices[-1]


def test_lost_connection_ends_the_wait_for_its_draft() -> None:
    with ScriptedHub() as hub, linked(hub.url) as side:
        channel = side.link.open_channel(PROMPT, "greedy")
        deadline = time.monotonic() + WELCOMED_IN_S
        while channel.request(DraftShape(4, 4)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert channel.pending == 1
        hub.stop()
        assert channel.wait(WELCOMED_IN_S) is None
        assert channel.pending is None
        channel.close()


@pytest.mark.parametrize("named", [True, False], ids=["named", "unread"])
def test_a_refused_request_ends_the_wait_for_its_draft(named: bool) -> None:
    def script(asked: Asked) -> Iterable[Reply]:
        yield from refusing(asked) if named else [frame(Error("malformed", "not a message", "frame"))]

    with ScriptedHub(script) as hub, linked(hub.url) as side:
        channel = side.link.open_channel(PROMPT, "greedy")
        deadline = time.monotonic() + WELCOMED_IN_S
        while channel.request(DraftShape(4, 4)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert channel.wait(WELCOMED_IN_S) is None
        assert channel.pending is None
        assert channel.request(DraftShape(4, 4)) is not None
        channel.close()


def test_session_goes_on_under_its_tag_after_a_dropped_connection() -> None:
    engine = SlowEngine(7)
    wanted = request(max_tokens=200)
    honest = knowing(engine, wanted.sampling)

    def script(asked: Asked) -> Iterable[Reply]:
        if asked.earlier == 4:
            raise LeaveError
        yield from honest(asked)

    def on_piece(piece: Piece) -> None:
        if len(hub.requests) == 5:
            deadline = time.monotonic() + WELCOMED_IN_S
            while len(hub.opens) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)

    with ScriptedHub(script) as hub, linked(hub.url, engine, wanted) as side:
        answer = side.answer(on_piece)
        assert Plain.of(answer) == side.expected()
    assert [message.resume is None for message in hub.opens] == [True, False]
    assert len(hub.sessions) == 1
    assert hub.rows_in_order
    assert len(hub.requests) > 6


def test_hub_that_comes_late_joins() -> None:
    engine = SlowEngine(8)
    wanted = request(max_tokens=100)
    port = free_port()
    hubs: list[ScriptedHub] = []

    def on_piece(piece: Piece) -> None:
        if not hubs:
            hubs.append(ScriptedHub(knowing(engine, wanted.sampling), port=port))
            assert hubs[0].opened.wait(WELCOMED_IN_S)

    side = Side(f"ws://127.0.0.1:{port}", engine, wanted)
    with side.link:
        with pytest.raises(HubError, match=rf"the hub ws://127.0.0.1:{port} cannot be reached \("):
            side.link.wait_for_hub(WELCOMED_IN_S)
        answer = side.answer(on_piece)
        assert Plain.of(answer) == side.expected()
    hubs[0].stop()
    assert answer.stats.by_origin["hub"] > 0
    assert len([line for line in side.notices if "cannot be reached" in line]) == 1


def test_hub_that_stops_reading_stalls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's features fill every buffer on the way; the answer and the end of the link do not wait for them."""
    monkeypatch.setattr(hub_socket, "HEARTBEAT_S", 0.25)
    engine = PrefixEngine(9, feature_width=8192, max_context=2048, max_chunk=128)
    wanted = request(prompt=PROMPT * 80, context=2048, max_tokens=20)
    with ScriptedHub(guessing, feature_codec="f2", stalls=True) as hub, linked(hub.url, engine, wanted) as side:
        assert Plain.of(side.answer()) == side.expected()
        assert hub.opened.is_set()


def test_hub_whose_drafter_is_not_warm_is_not_asked() -> None:
    with ScriptedHub(guessing, warm=False) as hub, linked(hub.url) as side:
        assert Plain.of(side.answer()) == side.expected()
        assert not hub.requests


# Refusals and strangers.


def refused(hub: ScriptedHub, token: str | None = None) -> tuple[str, Side]:
    side = Side(hub.url, PrefixEngine(), request(), token)
    with side.link:
        with pytest.raises(HubError) as error:
            side.link.wait_for_hub(WELCOMED_IN_S)
        assert Plain.of(side.answer()) == side.expected()
    return str(error.value), side


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("token", [None, "secret-word"])
def test_wrong_token_is_said_once_and_not_tried_again_at_once(status: int, token: str | None) -> None:
    with ScriptedHub(status=status) as hub:
        message, side = refused(hub, token)
        time.sleep(0.3)
        assert len(hub.headers) == 1
    assert f"HTTP {status}" in message
    assert "--token-file" in message
    assert "secret-word" not in message + repr(side.link._address)
    assert side.notices == [f"{message}; decoding goes on without it and asks it again every minute"]


@pytest.mark.parametrize("code", ["version", "fingerprint"])
def test_hub_that_does_not_fit_is_said_once_and_not_tried_again_at_once(code: str) -> None:
    def refuse(hello: Hello) -> list[bytes]:
        return [frame(Error(code, f"tokenizer {hello.tokenizer_fp} is not mine\x1b[2J", "connection"))]

    with ScriptedHub(on_hello=refuse) as hub:
        message, side = refused(hub)
        time.sleep(0.3)
        assert len(hub.hellos) == 1
    assert "tokenizer t is not mine" in message
    assert side.notices == [f"{message}; decoding goes on without it and asks it again every minute"]
    assert message.isprintable()


def test_busy_hub_is_tried_again_when_it_says() -> None:
    def refuse(hello: Hello) -> list[bytes]:
        return [frame(Error("busy", "come back", "connection", retry_after_ms=100))]

    with ScriptedHub(on_hello=refuse) as hub:
        message, _ = refused(hub)
        assert "come back" in message
        again = Side(hub.url, PrefixEngine(), request())
        with again.link:
            deadline = time.monotonic() + WELCOMED_IN_S
            while len(hub.hellos) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert len(hub.hellos) >= 4
    assert len([line for line in again.notices if "come back" in line]) == 1


@pytest.mark.parametrize("kind", ["http", "websocket", "full"])
def test_what_is_no_hub_is_said(kind: str) -> None:
    hubs = {
        "http": lambda: ScriptedHub(status=404),
        "websocket": lambda: ScriptedHub(subprotocol=False),
        "full": lambda: ScriptedHub(status=503),
    }
    with hubs[kind]() as hub:
        message, _ = refused(hub)
    assert "cannot be reached" in message


def test_hub_without_a_token_that_is_called_by_another_name_is_said() -> None:
    with ScriptedHub(status=421) as hub:
        message, _ = refused(hub)
    assert "it has no token, and without one it answers to a loopback address only" in message


def test_listener_that_never_speaks_costs_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_link, "WELCOME_TIMEOUT_S", 0.1)
    with ScriptedHub(on_hello=lambda hello: ()) as hub:
        message, _ = refused(hub)
    assert "no WELCOME" in message


def test_token_goes_into_the_header_and_proxies_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ws_proxy", "all_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    with ScriptedHub() as hub:
        side = Side(hub.url, PrefixEngine(), request(), "secret-word")
        with side.link:
            side.link.wait_for_hub(WELCOMED_IN_S)
        assert hub.headers[0].headers["Authorization"] == "Bearer secret-word"
        assert "Sec-WebSocket-Extensions" not in hub.headers[0].headers


# A hub that sends the target on to a port of its own.


def sending_on(port: int) -> Callable[[Hello], list[bytes]]:
    def send_on(hello: Hello) -> list[bytes]:
        assert hello.dedicated
        return [frame(Welcome(1, "first", "scripted", "d", "none", 10.0, 16, 64, 16, "", True, False, port, "tick-et"))]

    return send_on


def test_target_goes_to_the_port_that_the_hub_names_and_shows_its_ticket_there() -> None:
    engine = SlowEngine(1)
    wanted = request(max_tokens=60)
    with ScriptedHub(knowing(engine, wanted.sampling)) as own, ScriptedHub(on_hello=sending_on(own.port)) as hub:
        side = Side(hub.url, engine, wanted, "secret-word")
        with side.link:
            side.link.wait_for_hub(WELCOMED_IN_S)
            answer = side.answer()
            figures = side.link.figures
        assert Plain.of(answer) == side.expected()
    assert answer.stats.by_origin["hub"] > 0
    assert figures.connections == 1
    assert "Starsd-Ticket" not in hub.headers[0].headers
    assert own.headers[0].headers["Starsd-Ticket"] == "tick-et"
    assert own.headers[0].headers["Authorization"] == "Bearer secret-word"
    assert not hub.opens
    assert "tick-et" not in "".join(side.notices) + repr(HubAddress(hub.url).at_own_port(own.port, "tick-et"))


def test_target_whose_own_port_goes_away_begins_at_the_main_port_again() -> None:
    own = ScriptedHub()
    hub = ScriptedHub(on_hello=lambda hello: sending_on(own.port)(hello))
    with hub, linked(hub.url) as side:
        own.stop()
        own = ScriptedHub()
        deadline = time.monotonic() + WELCOMED_IN_S
        while side.link.figures.connections < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert side.link.figures.connections == 2
    own.stop()
    assert len(hub.hellos) == 2


@pytest.mark.parametrize("status", [401, 403, 410, 503])
def test_ticket_that_is_not_taken_is_said_once_and_another_is_asked_for(status: int) -> None:
    with ScriptedHub(status=status) as own, ScriptedHub(on_hello=sending_on(own.port)) as hub:
        message, side = refused(hub)
        with Side(hub.url, PrefixEngine(), request()).link:
            deadline = time.monotonic() + WELCOMED_IN_S
            while len(own.headers) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert len(own.headers) >= 4
    assert f"sent this target on to ws://127.0.0.1:{own.port}" in message
    assert f"HTTP {status}" in message
    assert len(side.notices) == 1


def test_own_port_that_a_firewall_shuts_is_said_with_what_to_do() -> None:
    with ScriptedHub(on_hello=sending_on(free_port())) as hub:
        message, _ = refused(hub)
    assert "--port-range" in message


def test_hub_that_sends_from_port_to_port_is_left_alone_for_a_while() -> None:
    with (
        ScriptedHub(on_hello=sending_on(1)) as own,
        ScriptedHub(on_hello=sending_on(own.port)) as hub,
    ):
        message, _ = refused(hub)
        time.sleep(0.3)
        assert len(own.hellos) == 1
    assert "from port to port" in message


# Faults of our own.


def test_fault_of_our_own_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    engine = SlowEngine(2)
    wanted = request(max_tokens=60)
    with ScriptedHub(knowing(engine, wanted.sampling)) as hub:
        side = Side(hub.url, engine, wanted)
        honest = side.link._protocol.receive
        faults = [ZeroDivisionError("once")]

        def receive(data: bytes) -> list[TargetEvent]:
            if faults:
                raise faults.pop()
            return honest(data)

        side.link._protocol.receive = receive  # type: ignore[method-assign]
        with side.link:
            deadline = time.monotonic() + WELCOMED_IN_S
            while not side.link.figures.connections and time.monotonic() < deadline:
                time.sleep(0.01)
            answer = side.answer()
            assert Plain.of(answer) == side.expected()
            assert answer.stats.by_origin["hub"] > 0
        assert len(hub.hellos) == 2
    assert "ZeroDivisionError: once" in caplog.text


def test_faults_of_our_own_that_do_not_end_end_neither_the_search_nor_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedHub() as hub:
        side = Side(hub.url, PrefixEngine(), request(), uniform=0.0)
        honest, faults = side.link._protocol.connected, [ZeroDivisionError("again")] * 12

        def connected(at_own_port: bool = False) -> None:
            if faults:
                raise faults.pop()
            honest(at_own_port)

        side.link._protocol.connected = connected  # type: ignore[method-assign]
        with caplog.at_level(logging.INFO), side.link:
            deadline = time.monotonic() + WELCOMED_IN_S
            while not side.link.figures.is_up and time.monotonic() < deadline:
                time.sleep(0.01)
            assert side.link.figures.is_up
            assert Plain.of(side.answer()) == side.expected()
    assert not faults
    told = "the link to the hub broke by a fault of its own; decoding goes on without it until it is there"
    assert side.notices[0] == told
    assert len(side.notices) == 2
    assert "ZeroDivisionError: again" in caplog.text
    assert "Traceback" not in caplog.text


def test_listener_that_cannot_be_told_costs_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    def notify(line: str) -> None:
        raise BrokenPipeError(line)

    with ScriptedHub() as hub:
        side = Side(hub.url, PrefixEngine(), request())
        side.link._notify = notify
        with side.link:
            side.link.wait_for_hub(WELCOMED_IN_S)
            assert Plain.of(side.answer()) == side.expected()
            assert side.link.figures.connections == 1
    assert "drafts with scripted" in caplog.text


@pytest.mark.parametrize("moment", ["connecting", "away", "welcomed"])
def test_link_ends_when_told(moment: str) -> None:
    hub = ScriptedHub()
    side = Side(hub.url, PrefixEngine(), request())
    if moment == "away":
        hub.stop()
    side.link.start()
    if moment == "welcomed":
        side.link.wait_for_hub(WELCOMED_IN_S)
    side.link.stop()
    side.link.stop()
    assert not any(thread.name == "hub-link" for thread in threading.enumerate())
    hub.stop()


def free_port() -> int:
    hub = ScriptedHub()
    hub.stop()
    return hub.port
