"""Ports of their own for targets, over real loopback sockets: who gets one, who gets in, and when it is free again."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.errors import UsageError
from starsd_edge.listening import bind
from starsd_edge.protocol.hub_side import HubLimits
from starsd_edge.protocol.messages import TICKET_HEADER, Error, Open, Opened, Welcome
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.feed import FEED_SUBPROTOCOL, decode_snapshot
from starsd_edge.telemetry.hub_facts import HubFacts
from starsd_edge.telemetry.rounds import HUB, Round
from starsd_jetson.drafting import NoDrafts
from starsd_server import dedicated_ports
from starsd_server import dedicated_ports as port_leases
from starsd_server.binding import listen_beside
from starsd_server.drafters.contract import DrafterRegistry
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.hub import Hub
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.decoding import Plain, request
from tests.support.hub_client import HubClient, RunningHub, connect_to, free_ports, hello, http_get, running_hub
from tests.support.linked_target import LinkedTarget
from tests.support.pace import Pace
from tests.support.star import self_drafter, until

PATIENCE_S = 20
TOKEN = "correct-horse-battery-staple"


@asynccontextmanager
async def dedicated_hub(ports: int | range = 4, **changes: Any) -> AsyncIterator[RunningHub]:
    own_ports = ports if isinstance(ports, range) else free_ports(ports)
    drafters, limits = changes.pop("drafters", ()), changes.pop("limits", HubLimits())
    async with running_hub(drafters, HubSettings(DoorSettings(own_ports=own_ports, **changes), limits)) as hub:
        yield hub


async def sent_on(hub: RunningHub, token: str | None = None, **changes: Any) -> Welcome:
    """What a target is told at the main port, which it then leaves."""
    async with hub.client(token) as client:
        welcome = await client.introduce(dedicated=True, **changes)
        assert await close_code(client) == 1000
    assert welcome.port
    return welcome


async def close_code(client: HubClient) -> int | None:
    async def listen() -> None:
        while True:
            await client.receive()

    with pytest.raises(ConnectionClosed) as ended:
        await listen()
    return None if ended.value.rcvd is None else ended.value.rcvd.code


def at(port: int, ticket: str | None, token: str | None = None, **options: Any) -> Any:
    """A connection to a port of a target's own."""
    headers = {} if ticket is None else {TICKET_HEADER: ticket}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    return connect_to(f"ws://127.0.0.1:{port}", **{"additional_headers": headers, **options})


async def status_of(attempt: Any) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await attempt
    return int(refused.value.response.status_code)


async def is_shut(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def until_shut(port: int) -> None:
    async def wait() -> None:
        while not await is_shut(port):
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), PATIENCE_S)


def facts(hub: RunningHub) -> HubFacts:
    return hub.hub.facts()


# Whole targets.


@pytest.mark.parametrize("shape", [DraftShape(4, 4), DraftShape(12, 4, 3)], ids=["chains", "trees"])
async def test_targets_with_a_port_each_say_what_each_says_alone(shape: DraftShape) -> None:
    wanted = [
        request(sampling=SamplingParams(0.5 * (number % 3), seed=number), shape=shape, max_tokens=60)
        for number in range(4)
    ]
    async with dedicated_hub(8, drafters=[self_drafter()]) as hub:
        targets = [
            LinkedTarget(hub.url, each, fallback=NoDrafts(), wait_s=PATIENCE_S, name=f"target-{number}")
            for number, each in enumerate(wanted)
        ]
        for target in targets:
            target.link.start()
        await asyncio.gather(*(asyncio.to_thread(target.connect) for target in targets))
        seen = facts(hub)
        ports = {target.port for target in seen.targets if target.target}
        assert len(ports) == 4
        assert hub.port not in ports
        assert (seen.own_ports, seen.own_ports_taken) == (8, 4)
        answers = await asyncio.gather(*(asyncio.to_thread(target.answer) for target in targets))
        for answer, target in zip(answers, targets, strict=True):
            assert Plain.of(answer) == target.plain()
            assert answer.stats.by_origin["hub"] > 0
        await asyncio.gather(*(asyncio.to_thread(target.link.stop) for target in targets))
        await asyncio.gather(*(until_shut(port) for port in ports))
        assert facts(hub).own_ports_taken == 0


async def test_a_target_for_which_there_is_no_port_goes_alone_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedicated_ports, "_RETRY_MS", 100)
    wanted = request(max_tokens=1500, context=2048)
    async with dedicated_hub(1, drafters=[self_drafter()]) as hub:
        welcome = await sent_on(hub)
        async with at(welcome.port, welcome.ticket) as first:
            await HubClient(first).introduce(dedicated=True)
            async with LinkedTarget(hub.url, wanted, fallback=NoDrafts(), wait_s=PATIENCE_S) as target:
                pace = Pace(stop_at=20)
                answering = asyncio.ensure_future(
                    asyncio.to_thread(
                        target.answer, None, pace.on_piece, cancelled=lambda: target.link.figures.connections > 0
                    )
                )
                await pace.standing()
                await until(lambda: bool(target.notices), "the target was told nothing")
                assert "every port of the hub's --port-range" in target.notices[0]
                await first.close()
                await until(lambda: target.link.figures.connections > 0, "the target did not get the port")
                pace.go()
                assert target.would_say(await answering)
                short = replace(wanted, max_tokens=40)
                again = await asyncio.to_thread(target.answer, short)
                assert Plain.of(again) == target.plain(short)
                assert again.stats.by_origin["hub"] > 0


async def test_a_target_that_is_cut_off_in_the_middle_comes_back_at_another_port() -> None:
    wanted = request(sampling=SamplingParams(0.7, seed=9), max_tokens=200, context=512)
    rounds: list[Round] = []
    async with dedicated_hub(4, drafters=[self_drafter()]) as hub:
        async with LinkedTarget(hub.url, wanted, fallback=NoDrafts(), wait_s=PATIENCE_S) as target:
            await asyncio.to_thread(target.connect)
            pace = Pace(stop_at=60)
            answering = asyncio.ensure_future(
                asyncio.to_thread(target.answer, None, pace.on_piece, rounds.append),
            )
            await pace.standing()
            (before,) = [each.port for each in facts(hub).targets if each.target]
            for connection in list(hub.hub._door._at_own_port):
                connection.transport.abort()
            await until(lambda: target.link.figures.connections == 2, "the target did not come back")
            await until(lambda: facts(hub).sessions_away == 0, "its session did not go on")
            (after,) = [each.port for each in facts(hub).targets if each.target]
            assert after != before
            assert facts(hub).sessions == 1
            already = len(rounds)
            pace.go()
            assert Plain.of(await answering) == target.plain()
        assert any(done.origin == HUB for done in rounds[:already])
        assert any(done.origin == HUB for done in rounds[already:])


async def test_the_monitor_sees_a_target_join_and_leave_once() -> None:
    async with dedicated_hub() as hub:
        welcome = await sent_on(hub, target="kitchen")
        async with at(welcome.port, welcome.ticket) as websocket:
            await HubClient(websocket).introduce(target="kitchen", dedicated=True)
        await until_shut(welcome.port)
        await until(lambda: not facts(hub).targets, "it is still there")
        watching = connect_to(hub.url, subprotocols=[Subprotocol(FEED_SUBPROTOCOL)])
        async with watching as monitor:
            seen = decode_snapshot(await asyncio.wait_for(monitor.recv(), PATIENCE_S))
        told = [(event.kind, event.target) for event in seen.events if event.kind != "warm"]
        assert told == [("joined", "kitchen"), ("left", "kitchen")]


# Tickets.


async def test_a_ticket_opens_its_port_once_and_the_conversation_goes_on_there() -> None:
    async with dedicated_hub() as hub:
        welcome = await sent_on(hub, target="kitchen")
        async with at(welcome.port, welcome.ticket) as websocket:
            client = HubClient(websocket)
            there = await client.introduce(target="kitchen", dedicated=True)
            assert (there.port, there.ticket, there.hub_id) == (0, "", welcome.hub_id)
            tag = await client.open([5, 6, 7, 5])
            assert (await client.draft(tag, 1, [5, 6, 7, 5, 6], new=4)).ids == [7, 5, 6, 7]
            await asyncio.wait_for(await websocket.ping(), PATIENCE_S)
            assert await status_of(at(welcome.port, welcome.ticket)) == 410
            status = msgspec.json.decode((await hub.get("/status"))[1], type=HubFacts)
            (target,) = status.targets
            assert (target.target, target.port) == ("kitchen", welcome.port)
            assert welcome.ticket not in repr(status)
            assert f"starsd_hub_own_ports_taken {1.0}" in (await hub.get("/metrics"))[1]
        await until_shut(welcome.port)


async def test_no_other_ticket_opens_it_and_none_spoils_it() -> None:
    async with dedicated_hub() as hub:
        mine, other = await sent_on(hub), await sent_on(hub)
        assert mine.port != other.port
        assert len(mine.ticket) >= 32
        for ticket in (None, "", "x", mine.ticket + "x", other.ticket):
            assert await status_of(at(mine.port, ticket)) == 410
        twice = [(TICKET_HEADER, mine.ticket)] * 2
        assert await status_of(at(mine.port, None, additional_headers=twice)) == 410
        assert await status_of(connect_to(hub.url + "/own", additional_headers={TICKET_HEADER: mine.ticket})) == 404
        for welcome in (mine, other):
            async with at(welcome.port, welcome.ticket) as websocket:
                await HubClient(websocket).introduce()


async def test_a_ticket_that_nobody_shows_expires_and_its_port_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_leases, "TICKET_VALID_S", 0.0)
    async with dedicated_hub(1) as hub:
        welcome = await sent_on(hub)
        with pytest.raises((InvalidStatus, OSError)):  # refused, or shut already
            await at(welcome.port, welcome.ticket)
        await until_shut(welcome.port)
        monkeypatch.undo()
        again = await sent_on(hub)
        assert again.port == welcome.port
        assert await status_of(at(again.port, welcome.ticket)) == 410
        async with at(again.port, again.ticket) as websocket:
            await HubClient(websocket).introduce()


async def test_at_every_port_the_token_is_asked_for_and_browsers_are_refused() -> None:
    async with dedicated_hub(token=TOKEN) as hub:
        welcome = await sent_on(hub, TOKEN)
        assert await status_of(at(welcome.port, welcome.ticket)) == 401
        assert await status_of(at(welcome.port, welcome.ticket, "wrong")) == 401
        assert await status_of(at(welcome.port, welcome.ticket, TOKEN, origin="https://evil.example")) == 403
        assert await status_of(at(welcome.port, None, TOKEN)) == 410
        assert facts(hub).auth_failures == 2
        async with at(welcome.port, welcome.ticket, TOKEN) as websocket:
            await HubClient(websocket).introduce()
    async with dedicated_hub() as hub:
        welcome = await sent_on(hub)
        assert (await http_get(welcome.port, "/", {"Host": "evil.example"}))[0] == 421


async def test_at_a_port_of_its_own_there_is_no_page_and_no_feed() -> None:
    async with dedicated_hub() as hub:
        welcome = await sent_on(hub)
        for path in ("/status", "/metrics", "/healthz"):
            assert (await http_get(welcome.port, path, {TICKET_HEADER: welcome.ticket}))[0] == 404
        with pytest.raises(InvalidHandshake):
            await at(welcome.port, welcome.ticket, subprotocols=[Subprotocol(FEED_SUBPROTOCOL)])
        await until_shut(welcome.port)  # its ticket is used up
        watching = connect_to(hub.url, subprotocols=[Subprotocol(FEED_SUBPROTOCOL)])
        async with watching as monitor:
            assert await asyncio.wait_for(monitor.recv(), PATIENCE_S)


# Ports.


def test_ports_of_their_own_are_at_the_address_of_the_main_one() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with bind("::1", 0, has_token=False) as main, listen_beside(main, free_ports(1)[0]) as own:
        assert own.getsockname()[0] == "::1"
        with socket.create_connection(own.getsockname()[:2], timeout=PATIENCE_S):
            pass


async def test_when_every_port_is_taken_a_target_is_told_when_to_come_back() -> None:
    async with dedicated_hub(2) as hub:
        first, second = await sent_on(hub), await sent_on(hub)
        assert {first.port, second.port} == set(hub.hub._door._leases.ports)
        async with hub.client() as client:
            await client.send(hello(dedicated=True))
            error = await client.expect(Error)
            assert (error.code, error.scope, error.retry_after_ms) == ("busy", "connection", 5000)
            assert await close_code(client) == 1013
        async with hub.client() as older:
            assert (await older.introduce()).port == 0  # a target that knows nothing of it needs none


async def test_a_port_that_somebody_else_holds_is_passed_over() -> None:
    ports = free_ports(3)
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        async with dedicated_hub(ports) as hub:
            assert (await sent_on(hub)).port == ports[2]


async def test_a_range_of_which_no_port_can_be_had_is_said_at_the_start() -> None:
    ports = free_ports(1)
    fallback = NgramDrafter(8)
    with socket.create_server(("127.0.0.1", ports[0])), bind("127.0.0.1", 0, has_token=False) as main:
        settings = HubSettings(DoorSettings(own_ports=ports))
        hub = Hub(DrafterRegistry([fallback], fallback, required=False), settings, time.monotonic)
        with pytest.raises(UsageError, match=rf"--port-range {ports[0]}-{ports[0]} can be had on 127\.0\.0\.1: .*use"):
            await hub.start(main)


async def test_the_main_port_is_nobodys_own() -> None:
    fallback = NgramDrafter(8)
    with bind("127.0.0.1", 0, has_token=False) as main:
        port = main.getsockname()[1]
        settings = HubSettings(DoorSettings(own_ports=range(port, port + 1)))
        hub = Hub(DrafterRegistry([fallback], fallback, required=False), settings, time.monotonic)
        with pytest.raises(UsageError, match=rf"--port-range {port}-{port} can be had .*: it is the main port"):
            await hub.start(main)


async def test_a_target_that_knows_nothing_of_own_ports_is_served_where_it_comes_in() -> None:
    async with dedicated_hub() as hub, hub.client() as client:
        assert (await client.introduce()).port == 0
        tag = await client.open([5, 6, 7, 5])
        assert (await client.draft(tag, 1, [5, 6, 7, 5, 6], new=4)).ids == [7, 5, 6, 7]
        assert facts(hub).own_ports_taken == 0
        assert facts(hub).targets[0].port == hub.port


async def test_a_session_goes_on_at_another_port() -> None:
    async with dedicated_hub() as hub:
        first = await sent_on(hub)
        async with at(first.port, first.ticket) as websocket:
            client = HubClient(websocket)
            await client.introduce(dedicated=True)
            tag = await client.open([5, 6, 7, 5])
            await client.draft(tag, 1, [5, 6, 7, 5, 6], new=4)
        second = await sent_on(hub)
        assert second.port != first.port
        async with at(second.port, second.ticket) as websocket:
            client = HubClient(websocket)
            await client.introduce(dedicated=True)
            await client.send(Open(0, 0, 5, resume=tag))
            opened = await client.expect(Opened)
            assert (opened.tag, opened.rows_held) == (tag, 4)
            assert (await client.draft(tag, 2, [5, 6, 7, 5, 6, 7], new=1)).ids == [5, 6, 7, 5]


def vanish(websocket: Any) -> None:
    websocket.transport.abort()


def fall_silent(websocket: Any) -> None:
    websocket.transport.pause_reading()


@pytest.mark.parametrize("leave", [vanish, fall_silent])
async def test_a_target_that_is_gone_without_a_word_leaves_its_port(leave: Callable[[Any], None]) -> None:
    async with dedicated_hub(limits=HubLimits(heartbeat_s=0.2)) as hub:
        welcome = await sent_on(hub)
        websocket = await at(welcome.port, welcome.ticket, ping_interval=None)
        await HubClient(websocket).introduce()
        leave(websocket)
        await until_shut(welcome.port)
        await until(lambda: facts(hub).own_ports_taken == 0, "the port is still taken")
        vanish(websocket)


async def test_a_closing_hub_says_going_away_at_every_port_and_shuts_them_all() -> None:
    async with dedicated_hub() as hub:
        waiting = await sent_on(hub)
        served = await sent_on(hub)
        async with at(served.port, served.ticket) as websocket:
            client = HubClient(websocket)
            await client.introduce()
            stopping = asyncio.ensure_future(hub.hub.stop())
            assert await close_code(client) == 1001
            await stopping
        for port in (hub.port, waiting.port, served.port):
            await until_shut(port)
