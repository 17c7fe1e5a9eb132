"""Whatever answers at the hub's address: no answer ends the search for it, shows a traceback, or leads elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from starsd_edge.telemetry.monitor.feed_client import LIVE, FeedClient, FeedLink
from starsd_jetson import hub_link, target
from tests.jetson.test_hub_link import Side
from tests.support.command_line import CommandLine
from tests.support.decoding import Plain, request
from tests.support.hub_client import running_hub
from tests.support.letter_bundle import write_bundle
from tests.support.odd_peers import ODD_ANSWERS, OddPeer, http
from tests.support.prefix_engine import PrefixEngine
from tests.support.scripted_hub import ScriptedHub

IN_S = 30
REFUSALS = {"401": http("401 Unauthorized"), "403": http("403 Forbidden"), "421": http("421 Misdirected Request")}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + IN_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


def test_a_target_finds_its_hub_after_any_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub_link, "REFUSED_S", 0.0)
    answers = {**ODD_ANSWERS, **REFUSALS}
    with OddPeer(answers) as peer, caplog.at_level(logging.INFO):
        side = Side(peer.url, PrefixEngine(), request(), uniform=0.0)
        with side.link:
            until(lambda: peer.asked >= 2 * len(answers))
            assert Plain.of(side.answer()) == side.expected()
            peer.stop()
            with ScriptedHub(port=peer.port):
                until(lambda: side.link.figures.is_up)
                assert Plain.of(side.answer()) == side.expected()
    assert "Traceback" not in caplog.text
    assert "fault of our own" not in caplog.text
    assert all(line.isprintable() for line in side.notices)
    assert len(side.notices) < 10, "what goes on is not said again and again"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("301 to https", "HTTP 301 and sends on to wss://desk.example:443/hub: give that address if the hub is there"),
        ("301 to itself", "it answers with HTTP 301)"),
        ("400", "HTTP 400: if it takes TLS only, use wss://"),
        ("502", "it answers with HTTP 502)"),
        ("a TLS alert", "what listens there is no hub; if it takes TLS only, use wss://"),
        ("101 without subprotocol", "what listens there is no hub"),
    ],
)
def test_what_answers_is_said_with_what_to_do(answer: str, words: str) -> None:
    with OddPeer({answer: ODD_ANSWERS[answer]}) as peer:
        side = Side(peer.url, PrefixEngine(), request())
        with side.link:
            until(lambda: bool(side.notices))
    assert words in side.notices[0]


def test_tls_to_what_has_none_is_said_with_what_to_do() -> None:
    with OddPeer({"SSH": ODD_ANSWERS["SSH"]}) as peer:
        side = Side(peer.url.replace("ws:", "wss:"), PrefixEngine(), request())
        with side.link:
            until(lambda: bool(side.notices))
    assert "if it has no TLS, use ws://" in side.notices[0]


def test_a_redirect_leads_neither_a_target_nor_a_monitor_elsewhere() -> None:
    with ScriptedHub() as other:
        answers = {"307": http("307 Temporary Redirect", f"Location: {other.url}/")}
        with OddPeer(answers) as peer:
            side = Side(peer.url, PrefixEngine(), request(), "secret-word", uniform=0.0)
            with side.link:
                until(lambda: peer.asked >= 3)
            client = FeedClient(peer.url, {}, _Hasty(), time.monotonic)
            seen = asyncio.run(_first(client))
        assert not other.headers
    why = f"it answers with HTTP 307 and sends on to {other.url}: give that address if the hub is there"
    assert seen == FeedLink(f"no hub: {why}", is_live=False)


async def test_a_monitor_finds_its_hub_after_any_answers() -> None:
    peer = OddPeer(ODD_ANSWERS)
    items = FeedClient(peer.url, {}, _Hasty(), time.monotonic).items()
    async with aclosing(items):
        while peer.asked < 2 * len(ODD_ANSWERS):
            item = await asyncio.wait_for(anext(items), IN_S)
            assert isinstance(item, FeedLink)
            assert item.text.isprintable()
        await asyncio.to_thread(peer.stop)
        async with running_hub(port=peer.port):
            while item != LIVE:
                item = await asyncio.wait_for(anext(items), IN_S)
        # Having been let in once, it is not turned away for good by what answers while the hub is away.
        with OddPeer(REFUSALS, peer.port) as peer:
            while peer.asked < 2 * len(REFUSALS):
                await asyncio.wait_for(anext(items), IN_S)


@pytest.mark.parametrize("answer", ["301 to https", "302 to two places", "308 to what is no address", "a reset", "nil"])
def test_commands_end_with_one_line(
    answer: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "open_engine", lambda *arguments, **named: PrefixEngine(1, max_context=512))
    command = CommandLine(capsys)
    bundle = write_bundle(tmp_path / "bundle")
    with OddPeer({answer: ODD_ANSWERS[answer]}) as peer:
        for words in (
            ("monitor", peer.url, "--once"),
            ("run-target", bundle, "--prompt", "a", "--hub", peer.url, "--require-hub"),
            ("doctor", "--network", peer.url, "--bundle", bundle),
        ):
            ended = command(*words)
            assert ended.code == 1, ended
            assert "Traceback" not in ended.err
            assert ended.err.splitlines()[-1].startswith("error: ")
            assert f"{peer.url}" in ended.err


class _Hasty:
    def served(self, seconds: float) -> None:
        pass

    def next_delay_s(self) -> float:
        return 0.0


async def _first(client: FeedClient) -> object:
    async with aclosing(client.items()) as items:
        return await asyncio.wait_for(anext(items), IN_S)
