"""The monitor's feed over real sockets: who gets it, what is in it, and that it disturbs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from starsd_edge.protocol.messages import SUBPROTOCOL, Draft, DraftRequest, Open, Opened, Report
from starsd_edge.telemetry.feed import FEED_SUBPROTOCOL, Snapshot, decode_snapshot
from starsd_edge.telemetry.hub_facts import TargetFacts, TargetReport
from starsd_server.facts import percentiles_ms
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.hub_client import HubClient, RunningHub, connect_to, running_hub

PATIENCE_S = 20
WATCHING = {"subprotocols": [Subprotocol(FEED_SUBPROTOCOL)]}


async def snapshot(watcher: ClientConnection, wanted: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot:
    """The next snapshot of which this is true."""

    async def wait() -> Snapshot:
        while True:
            line = await watcher.recv()
            assert isinstance(line, str)
            if wanted(seen := decode_snapshot(line)):
                return seen

    return await asyncio.wait_for(wait(), PATIENCE_S)


def happened(seen: Snapshot) -> list[tuple[str, str]]:
    return [(event.kind, event.target) for event in seen.events]


async def decode_some(client: HubClient, ref: int = 0, rounds: int = 3) -> None:
    """Text that repeats itself, so that n-grams guess it."""
    text = [5, 6, 7, 5, 6, 7, 5]
    tag = await client.open(text, ref)
    new = len(text) - 1
    for epoch in range(1, rounds + 2):
        draft = await client.draft(tag, epoch, text, new)
        new = len(draft.ids) + 1
        text += [5 + (len(text) + ahead) % 3 for ahead in range(new)]


async def test_a_watcher_sees_targets_their_drafts_and_what_they_report() -> None:
    async with running_hub() as hub, connect_to(hub.url, **WATCHING) as watcher:
        # The drafter warms up in a thread of its own: whoever joins meanwhile may be told of first.
        warm = await snapshot(watcher, lambda seen: ("warm", "") in happened(seen))
        assert warm.facts.targets == []
        async with hub.client() as client:
            await client.introduce(target="orin")
            await decode_some(client)
            await client.send(Report(9, 8, 0, 30, 400, 50, 300, 20, "late"))
            seen = await snapshot(watcher, lambda seen: bool(seen.facts.targets and seen.facts.targets[0].report))
            (target,) = seen.facts.targets
            assert (target.target, target.drafter, target.sessions) == ("orin", "ngram", 1)
            assert target.report == TargetReport(9, 8, 0, 30, 400, 50, 300, 20, "late")
            assert target.drafted.drafts == 4
            assert target.drafted.judged == 3
            assert target.drafted.accepted == sum(target.drafted.level_hits) > 0
            assert seen.facts.drafted == target.drafted
            (drafter,) = seen.facts.drafters
            assert drafter.passes == drafter.drafts == 4
        seen = await snapshot(watcher, lambda seen: not seen.facts.targets)
        assert happened(seen) == [("warm", ""), ("joined", "orin"), ("left", "orin")]
        assert [event.number for event in seen.events] == [1, 2, 3]
        assert seen.facts.drafted.drafts == 4  # sums outlive the target


async def test_resumes_and_refusals_are_events() -> None:
    async with running_hub() as hub, connect_to(hub.url, **WATCHING) as watcher:
        async with hub.client() as client:
            await client.introduce(target="orin")
            tag = await client.open([1, 2])
        async with hub.client() as client:
            await client.introduce(target="orin")
            await client.send(Open(7, 0, 1, resume=tag))
            await client.expect(Opened)
            await client.ask(b"?" * 16, 1, [1, 2], new=1)
            seen = await snapshot(watcher, lambda seen: ("refused", "orin") in happened(seen))
            assert ("resumed", "orin") in happened(seen)
            assert seen.events[-1].text == "unknown_session"


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_path_that_gets_slow_is_observed_told_and_forgiven() -> None:
    """Seconds are made up; rounds are real."""
    clock = FakeClock()
    async with running_hub(clock=clock) as hub, hub.client() as client:
        await client.introduce(target="orin")
        text = [5, 6, 7, 5]
        tag = await client.open(text)
        epoch = 0

        async def decode(rounds: int, return_s: float) -> TargetFacts:
            nonlocal epoch
            for _ in range(rounds):
                clock.now += return_s
                epoch += 1
                await client.send(
                    DraftRequest(
                        tag, epoch, 3, 3 if epoch > 1 else 0, text[1:] if epoch == 1 else [], 4, 4, 1, target_us=30_000
                    )
                )
                await client.expect(Draft)
            (target,) = hub.hub.facts().targets
            return target

        usual = (await decode(30, 0.04)).latency
        assert (usual.return_ms, usual.link_ms, usual.degraded) == (pytest.approx(40), pytest.approx(10), False)
        slow = (await decode(4, 0.24)).latency
        assert (slow.return_ms, slow.link_ms, slow.degraded) == (pytest.approx(240), pytest.approx(210), True)
        assert slow.usual_ms == pytest.approx(10, rel=0.05)
        assert not (await decode(5, 0.04)).latency.degraded
        await client.send(Report(10, 10, 0, 30, 400, 50, 300_000, 20))
        await client.send(Report(20, 20, 0, 60, 800, 50, 600_000, 20))
        assert (await decode(1, 0.04)).latency.verify_ms == pytest.approx(30)
        told = [(event.kind, event.target, event.text) for event in hub.hub._events.recent()]
        assert told[2][:2] == ("degraded", "orin")
        assert told[2][2].startswith("210.0 ms, usually 10.")
        assert told[3][:2] == ("recovered", "orin")


async def test_the_feed_needs_the_token_and_is_for_few() -> None:
    settings = HubSettings(DoorSettings(token="secret", max_monitors=1))
    async with running_hub(settings=settings) as hub:
        with pytest.raises(InvalidStatus) as refused:
            await connect_to(hub.url, **WATCHING)
        assert refused.value.response.status_code == 401
        async with connect_to(hub.url, "secret", **WATCHING) as watcher:
            await snapshot(watcher)
            with pytest.raises(InvalidStatus) as refused:
                await connect_to(hub.url, "secret", **WATCHING)
            assert refused.value.response.status_code == 503
            async with hub.client("secret") as target:  # monitors take no target's place
                await target.introduce()
            seen = await snapshot(watcher, lambda seen: "turned away" in dict(happened(seen)))
            assert (seen.facts.auth_failures, seen.facts.turned_away) == (1, 1)
        async with connect_to(hub.url, "secret", **WATCHING) as again:
            await snapshot(again)


async def test_a_watcher_only_listens() -> None:
    async with running_hub() as hub, connect_to(hub.url, **WATCHING) as watcher:
        await watcher.send(b"HELLO?")
        with pytest.raises(ConnectionClosed) as ended:
            await snapshot(watcher, lambda _: False)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1008


async def test_who_offers_both_roles_is_a_target() -> None:
    both = [Subprotocol(FEED_SUBPROTOCOL), Subprotocol(SUBPROTOCOL)]
    settings = HubSettings(DoorSettings(max_monitors=0))
    async with running_hub(settings=settings) as hub, connect_to(hub.url, subprotocols=both) as websocket:
        assert websocket.subprotocol == SUBPROTOCOL
        await HubClient(websocket).introduce()


async def test_a_watcher_that_reads_nothing_is_cut_off_and_targets_do_not_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("starsd_server.feed.SNAPSHOT_S", 0.01)
    monkeypatch.setattr("starsd_server.feed.encode_snapshot", lambda snapshot: b"x" * (1 << 20))
    settings = HubSettings(DoorSettings(send_timeout_s=0.2, max_monitors=1))
    async with running_hub(settings=settings) as hub, hub.client() as target:
        await target.introduce()
        async with connect_to(hub.url, max_queue=1, max_size=None, ping_interval=None, **WATCHING) as watcher:
            await decode_some(target)
            await until_gone(hub)
            watcher.transport.abort()
        await decode_some(target, ref=1)


async def until_gone(hub: RunningHub) -> None:
    """The hub has a place for a monitor again."""

    async def knock() -> None:
        while True:
            try:
                async with connect_to(hub.url, max_size=None, **WATCHING):
                    return
            except InvalidStatus:
                await asyncio.sleep(0.05)

    await asyncio.wait_for(knock(), PATIENCE_S)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles_ms([]) == (0.0, 0.0)
    assert percentiles_ms([4000]) == (4.0, 4.0)
    assert percentiles_ms(range(1000, 101_000, 1000)) == (50.0, 99.0)
