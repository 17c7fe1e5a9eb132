"""Bundles that a hub hands out: every byte as it was, over links that break, and nothing from a hub that lies."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.protocol.bundle_offer import OFFER_SUBPROTOCOL, Fetch, OfferedBundle, OfferedFile
from starsd_jetson import bundle_fetch
from starsd_jetson.bundle_fetch import BundleFetch, choose
from starsd_jetson.hub_address import HubAddress
from starsd_server import offers as offers_module
from starsd_server.offers import Offers
from starsd_server.peer import LiveConnection
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.command_line import CommandLine
from tests.support.decoding import request
from tests.support.hub_client import connect_to, running_hub
from tests.support.letter_bundle import write_bundle
from tests.support.linked_target import LinkedTarget

PIECE = 100
FETCHING = {"subprotocols": [Subprotocol(OFFER_SUBPROTOCOL)]}


@pytest.fixture
def bundle(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that is not in the cache, of many pieces."""
    monkeypatch.setattr(offers_module, "PIECE_BYTES", PIECE)
    return write_bundle(tmp_path / "letters-fp32")


async def no_sleep(seconds: float) -> None:
    """Links come back at once."""


def fetching(url: str, token: str | None = None) -> BundleFetch:
    return BundleFetch(HubAddress.parse(url, token), lambda done, total: None, no_sleep)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def left_in(cache: Path) -> list[str]:
    """Files below the cache, the records of what was checked left out."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if "checked" not in path.parts)


async def test_a_bundle_arrives_as_it_is_and_is_fetched_once(
    bundle: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "starsd_server")
    offers = Offers.of([bundle])
    told: list[tuple[int, int]] = []
    async with running_hub(offers=offers) as hub:
        fetch = BundleFetch(HubAddress.parse(hub.url), lambda done, total: told.append((done, total)), no_sleep)
        (listed,) = await fetch.offers()
        assert (listed.name, listed.weights) == ("letters-fp32", load_bundle(bundle).manifest.graph.weights)
        fetched = await fetch.fetch("letters")
        assert fetched.path == cache / "bundles" / "letters-fp32"
        assert files_of(fetched.path) == files_of(bundle)
        assert offers.bytes_sent == listed.size
        sent = {line for line in (await hub.get("/metrics"))[1].splitlines() if line.startswith("starsd_bundle_bytes")}
        assert sent == {f"starsd_bundle_bytes_total {float(listed.size)}"}
        assert sum("fetches letters-fp32" in line for line in caplog.messages) == 1, "and not for each file"
        assert told[-1] == (listed.size, listed.size)
        assert (await fetch.fetch("letters-fp32")).was_here
        assert offers.bytes_sent == listed.size
        altered = next(path for path in fetched.path.iterdir() if path.name != "manifest.json")
        altered.write_bytes(altered.read_bytes() + b"x")
        assert not (await fetch.fetch("letters-fp32")).was_here, "what is damaged here is fetched again"
        assert files_of(fetched.path) == files_of(bundle)
    assert not (cache / "arriving").exists()


class Breaking(Offers):
    """Its connections break after a few pieces, as often as it is told."""

    breaks = 3

    async def _send(self, connection: LiveConnection, path: Path, size: int, at: int) -> None:
        if self.breaks and size - at > 3 * PIECE:
            self.breaks -= 1
            await super()._send(connection, path, at + 2 * PIECE, at)
            connection.transport.close()
        else:
            await super()._send(connection, path, size, at)


async def test_a_link_that_breaks_costs_no_byte_twice(bundle: Path, cache: Path) -> None:
    offers = Breaking.of([bundle])
    async with running_hub(offers=offers) as hub:
        fetched = await fetching(hub.url).fetch("letters")
    assert offers.breaks == 0
    assert files_of(fetched.path) == files_of(bundle)
    assert offers.bytes_sent == fetched.offered.size


async def test_a_later_run_goes_on_where_the_earlier_one_gave_up(bundle: Path, cache: Path) -> None:
    before = Breaking.of([bundle])
    async with running_hub(offers=before) as hub:
        port = int(hub.url.rpartition(":")[2])
        lone = fetching(hub.url)
        lone._connected = _only_first(lone._connected)  # type: ignore[method-assign]
        with pytest.raises(StarsdError, match="what came is kept: the same command goes on from there"):
            await lone.fetch("letters")
    assert left_in(cache)
    after = Offers.of([bundle])
    async with running_hub(offers=after, port=port) as hub:
        fetched = await fetching(hub.url).fetch("letters")
    assert files_of(fetched.path) == files_of(bundle)
    assert before.bytes_sent + after.bytes_sent == fetched.offered.size


def _only_first(connected: Callable[[], Any], times: int = 2) -> Callable[[], Any]:
    """Connections after these fail."""
    count = 0

    @asynccontextmanager
    async def first() -> AsyncIterator[Any]:
        nonlocal count
        count += 1
        if count > times:
            raise ConnectionClosed(None, None)
        async with connected() as both:
            yield both

    return first


async def test_drafts_go_on_while_a_bundle_is_fetched(bundle: Path, cache: Path) -> None:
    async with running_hub(offers=Offers.of([bundle])) as hub, LinkedTarget(hub.url, request()) as target:
        await asyncio.to_thread(target.connect)
        answering = asyncio.create_task(asyncio.to_thread(target.answer))
        fetched = await fetching(hub.url).fetch("letters")
        assert target.would_say(await answering)
    assert files_of(fetched.path) == files_of(bundle)


async def test_a_file_that_was_altered_at_the_hub_is_not_kept(bundle: Path, cache: Path) -> None:
    async with running_hub(offers=Offers.of([bundle])) as hub:
        tokenizer = bundle / "tokenizer.json"
        tokenizer.write_bytes(tokenizer.read_bytes().replace(b"a", b"b"))
        with pytest.raises(StarsdError, match=r"tokenizer\.json is not the file that was exported"):
            await fetching(hub.url).fetch("letters")
    assert left_in(cache) == ["bundles"]


async def test_a_bundle_of_ones_own_is_not_replaced(bundle: Path, cache: Path) -> None:
    (cache / "bundles").mkdir(parents=True)
    mine = write_bundle(cache / "bundles" / "letters-fp32", context=64)
    before = files_of(mine)
    async with running_hub(offers=Offers.of([bundle])) as hub:
        with pytest.raises(UsageError, match="another letters-fp32 is here already: `starsd-edge rm letters-fp32`"):
            await fetching(hub.url).fetch("letters")
        assert files_of(mine) == before


async def test_who_shows_no_token_gets_nothing_and_few_come_at_once(bundle: Path, cache: Path) -> None:
    settings = HubSettings(DoorSettings(token="secret", max_fetching=1))
    async with running_hub(settings=settings, offers=Offers.of([bundle])) as hub:
        for token in (None, "wrong"):
            with pytest.raises(StarsdError, match="does not let this device in"):
                await fetching(hub.url, token).offers()
        async with connect_to(hub.url, "secret", **FETCHING):
            with pytest.raises(StarsdError, match="hands bundles to as many as it may: try later"):
                await fetching(hub.url, "secret").offers()
            async with hub.client("secret"):  # which takes no target's place
                pass
        assert (await fetching(hub.url, "secret").offers())[0].name == "letters-fp32"


async def test_a_hub_that_offers_nothing_says_how_it_would(cache: Path) -> None:
    async with running_hub() as hub:
        with pytest.raises(StarsdError, match="offers no bundles: start it with `run-draft"):
            await fetching(hub.url).fetch("letters")
        with pytest.raises(InvalidStatus) as refused:
            await connect_to(hub.url, **FETCHING)
        assert refused.value.response.status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        msgspec.msgpack.encode(Fetch("letters-fp32", "passwd", 0)),
        msgspec.msgpack.encode(Fetch("other", "manifest.json", 0)),
        msgspec.msgpack.encode(Fetch("letters-fp32", "manifest.json", 1 << 40)),
        msgspec.msgpack.encode(["fetch", "letters-fp32", "../letters-fp32/manifest.json", 0]),
        msgspec.msgpack.encode(["fetch", "letters-fp32", "manifest.json", -1]),
        msgspec.msgpack.encode(["fetch", "a" * 5000, "manifest.json", 0]),
        b"\xc1",
        "fetch",
    ],
)
async def test_a_client_that_asks_for_something_else_is_let_go(asked: bytes | str, bundle: Path) -> None:
    async with running_hub(offers=Offers.of([bundle])) as hub:
        connection = await connect_to(hub.url, **FETCHING)
        await connection.recv()
        await connection.send(asked)
        with pytest.raises(ConnectionClosed):
            await connection.recv()
        assert connection.close_code == 1008
        assert (await fetching(hub.url).offers())[0].name == "letters-fp32"


Script = Callable[[ServerConnection], Any]
DIGEST = hashlib.sha256(b"{}").hexdigest()


def listing(name: str = "letters-fp32", files: Sequence[tuple[str, int]] = (("manifest.json", 2),)) -> list[Any]:
    return ["offers", [[name, "x", "fp32", DIGEST, [list(file) for file in files]]]]


def lying(first: object, *pieces: bytes | str) -> Script:
    """Says this first, and these whatever it is asked."""

    async def script(connection: ServerConnection) -> None:
        await connection.send(msgspec.msgpack.encode(first))
        async for _ in connection:
            for piece in pieces:
                await connection.send(piece)

    return script


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (lying(["offers", 5]), "cannot be read"),
        (lying(listing("../../evil")), "cannot be read"),
        (lying(listing(".hidden")), "cannot be read"),
        (lying(listing(files=[("../evil", 2)])), "cannot be read"),
        (lying(listing(files=[("/etc/passwd", 2)])), "cannot be read"),
        (lying(listing(files=[("a/b", 2)])), "cannot be read"),
        (lying(listing(files=[("manifest.json", -1)])), "cannot be read"),
        (lying(listing(files=[("manifest.json", 1 << 62)])), "cannot be read"),
        (lying(listing(files=[(f"f{number}", 1) for number in range(300)])), "cannot be read"),
        (lying(listing(files=[("manifest.json", 1 << 40)])), "needs 1,099,512 MB"),
        (lying(listing(), b"{}{}"), "something else than the file"),
        (lying(listing(), ""), "something else than the file"),
        (lying(listing(), b""), "something else than the file"),
        (lying(listing(), b"[]"), "another manifest of letters-fp32 than it named"),
        (lying(listing(), b"{}"), "not what its manifest lists, and is not kept"),
        (lying(listing(files=[("weights", 2)]), b"{}"), "cannot be right"),
        (lying(listing(files=[("manifest.json", 2), ("manifest.json", 2)]), b"{}"), "cannot be right"),
    ],
)
async def test_a_hub_that_lies_leaves_nothing_behind(script: Script, says: str, cache: Path) -> None:
    async with serve(script, "127.0.0.1", 0, subprotocols=[Subprotocol(OFFER_SUBPROTOCOL)]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(StarsdError, match=says):
            await fetching(f"ws://127.0.0.1:{port}").fetch("letters")
    assert [name for name in left_in(cache) if name not in {"bundles", "arriving"} and "/0" not in name] in (
        [],
        [f"arriving/{DIGEST[:32]}"],
    ), "at most what came of a file, below its digest"


def ending(*first: bytes, reason: str = "", is_silent: bool = False) -> Script:
    """Says this first, waits to be asked if there was something, and ends."""

    async def script(connection: ServerConnection) -> None:
        for message in first:
            await connection.send(message)
            await connection.recv()
        if is_silent:
            await connection.wait_closed()
        await connection.close(1008, reason)

    return script


def of_manifest(manifest: bytes) -> Script:
    """Hands out a bundle with this manifest, and says its true digest."""
    files = [["manifest.json", len(manifest)]]
    return lying(["offers", [["letters-fp32", "x", "fp32", hashlib.sha256(manifest).hexdigest(), files]]], manifest)


STEERING = "\x1b[2J\x1b]0;owned"
DEEP = 20_000


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (ending(reason=STEERING), "was lost .*owned.*it has not said what it offers"),
        (ending(), "was lost .*it has not said what it offers"),
        (ending(is_silent=True), "was lost .no answer in time.*it has not said what it offers"),
        (ending(msgspec.msgpack.encode(listing()), reason=STEERING), "owned.*the same command goes on from there"),
        (ending(msgspec.msgpack.encode(listing())), "was lost .the connection was lost.*goes on from there"),
        (ending(b"\x93\xa6offers\x90" + b"\x91" * DEEP + b"\x90"), "list of bundles cannot be read"),
        (of_manifest(b'{"schema_version":1,"x":' + b"[" * DEEP + b"]" * DEEP + b"}"), "is damaged"),
        (of_manifest(msgspec.json.encode({"schema_version": 1, "kind": STEERING})), "is a bundle for .*owned"),
        (of_manifest(msgspec.json.encode({"schema_version": 1, STEERING: 1})), "is damaged .*owned"),
    ],
)
async def test_what_a_hub_does_and_writes_is_one_line_that_steers_no_terminal(
    script: Script, says: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_fetch, "_SILENCE_S", 0.05 if "no answer" in says else 30.0)
    async with serve(script, "127.0.0.1", 0, subprotocols=[Subprotocol(OFFER_SUBPROTOCOL)]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(StarsdError, match=says) as refused:
            await fetching(f"ws://127.0.0.1:{port}").fetch("letters")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


async def test_a_server_of_another_kind_or_none_is_one_line(cache: Path) -> None:
    async with serve(lying(listing()), "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(StarsdError, match="there is no hub at"):
            await fetching(f"ws://127.0.0.1:{port}").offers()
    with pytest.raises(StarsdError, match="Connection refused"):
        await fetching(f"ws://127.0.0.1:{port}").offers()


def test_the_bundle_is_found_by_its_own_name_or_its_models() -> None:
    offered = [
        OfferedBundle(name, "x", "fp32", DIGEST, [OfferedFile("manifest.json", 2)])
        for name in ("llama-fp32", "llama-int8", "qwen-fp32")
    ]
    assert choose(offered, "llama-int8").name == "llama-int8"
    assert choose(offered, "qwen").name == "qwen-fp32"
    with pytest.raises(UsageError, match="several of llama: name one of llama-fp32, llama-int8"):
        choose(offered, "llama")
    with pytest.raises(StarsdError, match=r"no 'qwen-fp23': did you mean qwen-fp32\?"):
        choose(offered, "qwen-fp23")
    with pytest.raises(StarsdError, match="no 'x': it offers nothing"):
        choose([], "x")


def test_two_bundles_of_one_name_and_names_that_cannot_be_handed_out_are_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    twin = write_bundle(tmp_path / "other" / bundle.name)
    with pytest.raises(UsageError, match="--offer names two bundles letters-fp32"):
        Offers.of([bundle, twin])
    with pytest.raises(UsageError, match="cannot be offered"):
        Offers.of([write_bundle(tmp_path / "with blank")])


async def test_the_command_says_where_it_lies(
    bundle: Path, cache: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = CommandLine(capfd)
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    settings = HubSettings(DoorSettings(token="secret"))
    async with running_hub(settings=settings, offers=Offers.of([bundle])) as hub:
        place = hub.url.removeprefix("ws://")

        def run(*more: str) -> Any:
            return cli("pull", "--from", place, "--token-file", token, *more)

        assert (await asyncio.to_thread(run, "--list")).out.startswith("letters-fp32: ")
        ended = await asyncio.to_thread(run, "letters")
        path, told = ended.out.splitlines()
        assert (ended.code, path) == (0, str(cache / "bundles" / "letters-fp32"))
        assert f"manifest {hashlib.sha256((bundle / 'manifest.json').read_bytes()).hexdigest()}" in told
        assert "secret" not in ended.out + ended.err
        assert "--list` shows them" in (await asyncio.to_thread(run)).err
