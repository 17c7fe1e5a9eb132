"""The whole hub over real loopback sockets, with a model that is a pure function of the prefix."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed, InvalidStatus

from starsd_edge.errors import UsageError
from starsd_edge.listening import bind
from starsd_edge.protocol.codes import DRAFTER_FAILED, FINGERPRINT, QUOTA, UNKNOWN_SESSION
from starsd_edge.protocol.features import write_features
from starsd_edge.protocol.hub_side import HubLimits
from starsd_edge.protocol.messages import Error, Extend, Hello, Open, Opened
from starsd_edge.protocol.rows import NewRows
from starsd_edge.scheduling.policies import KeyTerms
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.feed import FEED_VERSION, Snapshot
from starsd_edge.telemetry.monitor.model import MonitorModel
from starsd_server import hub as hub_module
from starsd_server.draft_size import SessionDemand, ShapeControllers
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.drafters.contract import DrafterRegistry, Failures
from starsd_server.drafters.ngram import NgramDrafter
from starsd_server.facts import TargetNames
from starsd_server.gate import HubKey
from starsd_server.hub import Hub
from starsd_server.settings import DoorSettings, DraftingSettings, HubSettings
from tests.support.hub_client import TOKENIZER_FP, HubClient, RunningHub, connect_to, hello, running_hub
from tests.support.prefix_engine import PrefixEngine

PATIENCE_S = 20


def model(seed: int = 0, tokenizer_fp: str = TOKENIZER_FP, max_sessions: int = 64, **engine: Any) -> CausalLmDrafter:
    return CausalLmDrafter(PrefixEngine(seed, **engine), tokenizer_fp, 24, max_sessions)


def greedy(text: Sequence[int], count: int, seed: int = 0) -> list[int]:
    engine = PrefixEngine(seed)
    said = list(text)
    for _ in range(count):
        said.append(int(engine.prefix_logits(said).argmax()))
    return said[len(text) :]


class Moody:
    """The ngram kind of interface with a mood: `on_draft` may block or raise."""

    kind = "moody"
    fingerprint = "moody"
    feature_codecs: tuple[str, ...] = ()

    def __init__(self, on_draft: Callable[[int], None]) -> None:
        self.on_draft = on_draft
        self._base_lens: dict[int, int] = {}

    def refuses(self, hello: Hello) -> str | None:
        return None

    def warm_up(self) -> None:
        pass

    def open(self, session: int, first_row: int, t_first: int) -> None:
        self._base_lens[session] = first_row

    def close(self, session: int) -> int:
        return 0

    def extend(self, batch: Sequence[NewRows]) -> Failures:
        for rows in batch:
            self._base_lens[rows.session] += len(rows.ids)
        return {}

    def base_len(self, session: int) -> int:
        return self._base_lens[session]

    def draft(self, batch: Sequence[int], shapes: Sequence[DraftShape]) -> list[DraftTree]:
        for session in batch:
            self.on_draft(session)
        return [DraftTree.chain([7]) for _ in batch]


async def status(hub: RunningHub, token: str = "") -> dict[str, Any]:
    code, body = await hub.get("/status", **({"Authorization": f"Bearer {token}"} if token else {}))
    assert code == 200
    return msgspec.json.decode(body, type=dict[str, Any])


async def until_status(hub: RunningHub, condition: Callable[[dict[str, Any]], bool], token: str = "") -> dict[str, Any]:
    async def wait() -> dict[str, Any]:
        while not condition(facts := await status(hub, token)):
            await asyncio.sleep(0.02)
        return facts

    return await asyncio.wait_for(wait(), PATIENCE_S)


async def decode(client: HubClient, prompt: list[int], rounds: int, seed: int = 0) -> tuple[list[int], int, int]:
    """Greedy decoding with drafts of the hub: the text, tokens accepted, tokens drafted."""
    tag = await client.open(prompt)
    text = list(prompt)
    new = len(text) - 1
    accepted = drafted = 0
    for epoch in range(1, rounds + 1):
        draft = await client.draft(tag, epoch, text, new)
        assert (draft.epoch, draft.base_len) == (epoch, len(text) - 1)
        truth = greedy(text, len(draft.ids) + 1, seed)
        right = next((i for i, (a, b) in enumerate(zip(draft.ids, truth, strict=False)) if a != b), len(draft.ids))
        accepted += right
        drafted += len(draft.ids)
        new = right + 1
        text += truth[:new]
    await client.close(tag)
    return text, accepted, drafted


async def test_a_fault_while_choosing_shapes_is_no_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def broken(controllers: ShapeControllers) -> list[SessionDemand]:
        asked.append(controllers)
        raise ValueError("a fault")

    monkeypatch.setattr(hub_module, "SHARE_S", 0.01)
    monkeypatch.setattr(ShapeControllers, "demands", broken)
    async with running_hub([NgramDrafter(4)]):
        deadline = time.monotonic() + PATIENCE_S
        while len(asked) < 3 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    assert len(asked) >= 3


async def test_a_model_drafting_for_itself_through_the_hub_is_accepted_whole() -> None:
    async with running_hub([model()]) as hub, hub.client() as client:
        welcome = await client.introduce()
        assert (welcome.drafter, welcome.notice) == ("causal-lm", "")
        text, accepted, drafted = await decode(client, [1, 2, 3], rounds=8)
        assert accepted == drafted == 32
        assert text[3:] == greedy([1, 2, 3], len(text) - 3)


async def test_targets_at_the_same_time_get_the_same_drafts_as_alone() -> None:
    async def one(hub: RunningHub, number: int) -> tuple[list[int], int, int]:
        async with hub.client() as client:
            await client.introduce(target=f"spoke {number}")
            return await decode(client, [number, 2, 3, number], rounds=6)

    async with running_hub([model(order_weight=2.0)]) as hub:
        together = await asyncio.gather(*(one(hub, number) for number in range(6)))
        alone = [await one(hub, number) for number in range(6)]
    assert together == alone


async def test_a_hub_without_a_model_drafts_by_ngram_and_ready_comes() -> None:
    async with running_hub() as hub, hub.client() as client:
        await client.send(hello())
        kinds = {type(await client.receive()).__name__, type(await client.receive()).__name__}
        assert kinds == {"Welcome", "Ready"}
        tag = await client.open([5, 6, 7, 5])
        draft = await client.draft(tag, 1, [5, 6, 7, 5, 6], new=4)
        assert draft.ids == [7, 5, 6, 7]


async def test_a_prompt_in_chunks_is_the_same_as_at_once() -> None:
    prompt = [i % 23 for i in range(200)]
    async with running_hub([model(max_context=256)]) as hub, hub.client() as client:
        await client.introduce()
        tag = await client.open(prompt)
        await client.extend(tag, 0, prompt[1:80])
        await client.extend(tag, 79, prompt[80:190])
        draft = await client.draft(tag, 1, prompt, new=10)
        assert draft.ids == greedy(prompt, 4)


async def test_a_misfit_gets_ngram_and_a_notice_or_a_refusal_when_required() -> None:
    async with running_hub([model()]) as hub, hub.client() as client:
        welcome = await client.introduce(tokenizer_fp="0" * 64)
        assert welcome.drafter == "ngram"
        assert "0" * 64 in welcome.notice
        assert TOKENIZER_FP in welcome.notice
    async with running_hub([model()], required=True) as hub, hub.client() as client:
        await client.send(hello(tokenizer_fp="0" * 64))
        error = await client.expect(Error)
        assert (error.code, error.scope) == (FINGERPRINT, "connection")
        assert "0" * 64 in error.message
        assert TOKENIZER_FP in error.message
        with pytest.raises(ConnectionClosed) as ended:
            await client.receive()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 4002


def rows_with_features(tag: bytes, first_row: int, count: int) -> Extend:
    """Rows of 128 bytes of features each."""
    features = write_features(np.ones((count, 64), dtype="<f2"), "f2")
    return Extend(tag, first_row, [1] * count, features)


async def test_features_that_wait_for_a_busy_drafter_are_bounded_and_welcome_again_when_it_has_taken_them() -> None:
    drafting, go_on = threading.Event(), threading.Event()

    def on_draft(session: int) -> None:
        drafting.set()
        go_on.wait(PATIENCE_S)

    drafter = Moody(on_draft)
    drafter.feature_codecs = ("f2",)
    settings = HubSettings(limits=HubLimits(max_waiting_bytes=100_000))
    async with running_hub([drafter], settings) as hub, hub.client() as client:
        assert (await client.introduce(codecs=["f2"], feature_width=64, max_context=2000)).feature_codec == "f2"
        busy = await client.open([1])
        await client.ask(busy, 1, [1], new=0)
        assert await asyncio.to_thread(drafting.wait, PATIENCE_S)
        tag = await client.open([1], ref=1)
        for number in range(8):
            await client.send(rows_with_features(tag, 100 * number, 100))
        error = await client.expect(Error)
        assert (error.code, error.scope, error.tag, error.retry_after_ms) == (QUOTA, "session", tag, 5000)
        go_on.set()
        await client.receive_draft()
        tag = await client.open([1], ref=2)
        await client.send(rows_with_features(tag, 0, 700))
        assert (await client.draft(tag, 1, [1] * 701, new=0)).ids == [7]


async def talk_garbage(client: HubClient) -> None:
    while True:
        await client.send(b"\x80\x04\x95 pickle and other garbage")
        await client.expect(Error)


async def test_garbage_costs_the_offender_only_while_a_neighbour_is_served() -> None:
    async with running_hub([model()]) as hub, hub.client() as good:
        await good.introduce(target="good")
        tag = await good.open([1, 2])
        async with hub.client() as bad:
            await bad.introduce(target="bad")
            with pytest.raises(ConnectionClosed):
                await talk_garbage(bad)
        async with hub.client() as rude:
            await rude.send(b"\xff" * 1000)  # not even HELLO
            assert (await rude.expect(Error)).scope == "connection"
        async with hub.client() as spy:
            await spy.introduce(target="spy")
            await spy.ask(tag, 1, [1, 2], new=1)  # a tag that it should not know, on its own connection
            assert (await spy.expect(Error)).code == UNKNOWN_SESSION
        assert (await good.draft(tag, 1, [1, 2], new=1)).ids == greedy([1, 2], 4)


@pytest.mark.parametrize("spinning", [False, True])
async def test_a_long_draft_delays_no_heartbeat_and_no_page(spinning: bool) -> None:
    """The drafter blocks, or computes in pure Python, until the test has seen the hub answer everything else."""
    drafting, answered = threading.Event(), threading.Event()

    def on_draft(session: int) -> None:
        drafting.set()
        while not answered.is_set():
            if not spinning:
                answered.wait(PATIENCE_S)

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as waiting, hub.client() as other:
        await waiting.introduce()
        tag = await waiting.open([1])
        await waiting.ask(tag, 1, [1], new=0)
        while not drafting.is_set():
            await asyncio.sleep(0.001)
        for client in (waiting, other):
            await asyncio.wait_for(await client.websocket.ping(), PATIENCE_S)
        assert (await other.introduce(target="other")).drafter == "moody"
        assert await other.open([2])
        assert (await hub.get("/healthz"))[0] == 200
        answered.set()
        assert (await waiting.receive_draft()).ids == [7]


async def test_a_newer_request_supersedes_the_one_that_waits() -> None:
    drafting, go_on = threading.Event(), threading.Event()

    def on_draft(session: int) -> None:
        drafting.set()
        go_on.wait(PATIENCE_S)

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as first, hub.client() as second:
        await first.introduce()
        await second.introduce()
        tag_first = await first.open([1])
        tag = await second.open([1])
        await first.ask(tag_first, 1, [1], new=0)
        while not drafting.is_set():
            await asyncio.sleep(0.001)
        await second.ask(tag, 1, [1], new=0)
        await second.ask(tag, 2, [1, 2], new=1)
        await until_status(hub, lambda facts: facts["queue"]["superseded"] == 1)
        go_on.set()
        draft = await second.receive_draft()
        assert (draft.epoch, draft.base_len) == (2, 1)


async def test_a_failing_drafter_costs_its_session_and_says_so_in_the_status() -> None:
    def on_draft(session: int) -> None:
        if session % 2 == 0:
            raise ZeroDivisionError

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as client:
        await client.introduce()
        good = await client.open([1], ref=1)
        bad = await client.open([1], ref=2)
        await client.ask(bad, 1, [1], new=0)
        error = await client.expect(Error)
        assert (error.code, error.scope, error.tag, error.epoch) == (DRAFTER_FAILED, "session", bad, 1)
        assert (await client.draft(good, 1, [1], new=0)).ids == [7]
        drafter = (await status(hub))["drafters"][0]
        assert (drafter["failures"], drafter["last_error"], drafter["failing"]) == (1, "ZeroDivisionError", False)


async def test_a_drafter_that_keeps_raising_makes_the_hub_unready() -> None:
    def on_draft(session: int) -> None:
        raise ZeroDivisionError

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as client:
        await client.introduce()
        for ref in range(3):
            tag = await client.open([1], ref=ref)
            await client.ask(tag, 1, [1], new=0)
            await client.expect(Error)
        assert (await hub.get("/readyz"))[0] == 503
        facts = await status(hub)
        assert not facts["ready"]
        assert facts["drafters"][0]["failing"]
        assert (await hub.get("/healthz"))[0] == 200


async def test_the_kv_of_fifty_sessions_is_freed_by_close_and_by_absence() -> None:
    drafter = model(max_sessions=64)
    limits = HubLimits(resume_grace_s=0.0, max_sessions_per_connection=64)
    async with running_hub([drafter], HubSettings(limits=limits)) as hub:
        async with hub.client() as client:
            await client.introduce()
            for number in range(50):
                tag = await client.open([1, 2], ref=number)
                await client.draft(tag, 1, [1, 2], new=1)
                if number % 2:
                    closed = await client.close(tag)
                    assert closed.rows_freed == 1
            facts = await until_status(hub, lambda facts: facts["drafters"][0]["sessions"] == 25)
            assert facts["targets"][0]["sessions"] == 25
        facts = await until_status(hub, lambda facts: facts["drafters"][0]["sessions"] == 0)
        assert (facts["sessions"], facts["targets"]) == (0, [])
        assert drafter._sessions == {}


async def test_a_session_survives_its_connection_and_goes_on_by_its_tag() -> None:
    async with running_hub([model()]) as hub:
        async with hub.client() as client:
            await client.introduce()
            tag = await client.open([1, 2, 3])
            await client.draft(tag, 1, [1, 2, 3], new=2)
        async with hub.client() as client:
            await client.introduce()
            await client.send(Open(0, 0, 1, resume=tag))
            opened = await client.expect(Opened)
            assert (opened.tag, opened.rows_held) == (tag, 2)
            assert (await client.draft(tag, 2, [1, 2, 3, 4], new=1)).ids == greedy([1, 2, 3, 4], 4)


async def test_beyond_the_hubs_sessions_an_open_is_refused_and_the_others_go_on() -> None:
    limits = HubLimits(max_sessions=1)
    async with running_hub([model(max_sessions=1)], HubSettings(limits=limits)) as hub, hub.client() as client:
        await client.introduce()
        tag = await client.open([1, 2])
        await client.send(Open(1, 0, 5))
        error = await client.expect(Error)
        assert error.scope == "session"
        assert error.retry_after_ms > 0
        assert (await client.draft(tag, 1, [1, 2], new=1)).ids == greedy([1, 2], 4)


async def test_the_status_tells_targets_links_queue_and_time() -> None:
    settings = HubSettings(DoorSettings(token="secret-token"))
    async with running_hub([model()], settings) as hub, hub.client("secret-token") as client:
        await client.introduce(target="kitchen")
        tag = await client.open([1, 2])
        await client.draft(tag, 1, [1, 2], new=1)
        assert (await hub.get("/status"))[0] == 401
        assert (await hub.get("/metrics"))[0] == 401
        headers = {"Authorization": "Bearer secret-token"}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            code, body = await hub.get("/status", **headers)
            facts = msgspec.json.decode(body, type=dict[str, Any])
            if facts["targets"][0]["rtt_ms"] is not None or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        target = facts["targets"][0]
        assert code == 200
        assert (target["target"], target["drafter"], target["sessions"]) == ("kitchen", "causal-lm", 1)
        assert 0 < target["min_rtt_ms"] <= target["rtt_ms"]
        assert target["frames_in"] == 3
        assert facts["bytes_up"] == target["bytes_in"]
        assert facts["bytes_down"] == target["bytes_out"]
        assert [drafter["kind"] for drafter in facts["drafters"]] == ["causal-lm", "ngram"]
        assert facts["drafters"][0]["drafts"] == facts["draft_times"]["drafts"] == 1
        assert facts["time"]["busy_s"] > 0
        assert "secret-token" not in body
        assert tag.hex() not in body


async def test_targets_of_one_name_are_told_apart_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """By their hosts, and on one host by their number; also by one that takes such a name for itself."""
    caplog.set_level(logging.INFO)
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
    said = ["jetson", "jetson", "jetson", "jetson@127.0.0.2 (2)", "lamp"]
    shown = ["jetson@127.0.0.1", "jetson@127.0.0.2", "jetson@127.0.0.2 (2)", "jetson@127.0.0.2 (2) (2)", "lamp"]
    async with running_hub() as hub, AsyncExitStack() as stack:
        clients = []
        for host, name in zip(hosts, said, strict=True):
            clients.append(await stack.enter_async_context(hub.client(local_addr=(host, 0))))
            await clients[-1].introduce(target=name)
            tag = await clients[-1].open([1, 2])
            await clients[-1].draft(tag, 1, [1, 2], new=1)
        await clients[0].open([1, 2], ref=1)
        for peer in hub.hub._connections:
            peer.sample_rtt()
        facts = await status(hub)
        assert [target["target"] for target in facts["targets"]] == shown
        assert [target["sessions"] for target in facts["targets"]] == [2, 1, 1, 1, 1], "each has its own"
        _, page = await hub.get("/metrics")
        for series in ("starsd_rtt_seconds", "starsd_target_drafts_total"):
            labels = re.findall(rf'^{series}{{target="(.*)"}}', page, re.MULTILINE)
            assert sorted(labels) == sorted(shown)
        assert [row.name for row in MonitorModel().take(Snapshot(FEED_VERSION, hub.hub.facts())).targets] == shown
    assert "more than one target has called itself 'jetson': give each its own --name" in caplog.text
    assert "target 'jetson@127.0.0.2' at 127.0.0.2:" in caplog.text


def test_a_name_that_two_hosts_had_stays_that_of_a_host() -> None:
    names = TargetNames()
    assert names.shown([("jetson", "a"), ("", "b"), ("", "b")]) == ["jetson", "", ""]
    assert names.shown([("jetson", "a"), ("jetson", "b")]) == ["jetson@a", "jetson@b"]
    assert names.shown([("jetson", "b")]) == ["jetson@b"], "its series goes on"
    assert names.shown([("lamp", "c"), ("lamp", "c"), ("lamp", "c")]) == ["lamp", "lamp (2)", "lamp (3)"]


async def test_keys_have_sessions_of_their_own() -> None:
    keys = (HubKey("kitchen-token"), HubKey("hall-token"))
    async with running_hub([model()], HubSettings(DoorSettings(keys=keys))) as hub:
        async with hub.client("kitchen-token") as client:
            await client.introduce()
            tag = await client.open([1, 2, 3])
        async with hub.client("hall-token") as client:
            await client.introduce()
            await client.send(Open(0, 0, 1, resume=tag))
            assert (await client.expect(Error)).code == UNKNOWN_SESSION
        async with hub.client("kitchen-token") as client:
            await client.introduce()
            await client.send(Open(0, 0, 1, resume=tag))
            assert (await client.expect(Opened)).tag == tag
        with pytest.raises(InvalidStatus) as refused:
            await connect_to(hub.url, "another-token")
        assert refused.value.response.status_code == 401


async def test_the_targets_of_a_key_with_priority_go_first() -> None:
    drafting, go_on = threading.Event(), threading.Event()
    order: list[int] = []

    def on_draft(session: int) -> None:
        order.append(session)
        drafting.set()
        go_on.wait(PATIENCE_S)

    keys = (HubKey("guests"), HubKey("house", KeyTerms(priority=1)))
    settings = HubSettings(DoorSettings(keys=keys), drafting=DraftingSettings("fifo", max_batch=1))
    async with running_hub([Moody(on_draft)], settings) as hub, hub.client("guests") as guest:
        await guest.introduce()
        tags = [await guest.open([1], ref=ref) for ref in range(3)]
        await guest.ask(tags[0], 1, [1], new=0)
        assert await asyncio.to_thread(drafting.wait, PATIENCE_S)
        for tag in tags[1:]:
            await guest.ask(tag, 1, [1], new=0)
        await until_status(hub, lambda facts: facts["queue"]["requests"] == 2, "guests")
        async with hub.client("house") as house:
            await house.introduce()
            tag = await house.open([1])
            await house.ask(tag, 1, [1], new=0)
            await until_status(hub, lambda facts: facts["queue"]["requests"] == 3, "guests")
            go_on.set()
            assert (await house.receive_draft()).ids == [7]
            for _ in tags:
                await guest.receive_draft()
        facts = await until_status(hub, lambda facts: facts["batches"]["sizes"] == [4], "guests")
    assert order == [1, 4, 2, 3]
    assert (facts["policy"], facts["policy_in_use"]) == ("fifo", "fifo")
    assert (facts["batches"]["last"], facts["batches"]["most"]) == (1, 1)


async def test_what_waits_together_is_drafted_together_and_shown() -> None:
    drafting, go_on = threading.Event(), threading.Event()

    def on_draft(session: int) -> None:
        drafting.set()
        go_on.wait(PATIENCE_S)

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as client:
        await client.introduce()
        tags = [await client.open([1], ref=ref) for ref in range(6)]
        await client.ask(tags[0], 1, [1], new=0)
        assert await asyncio.to_thread(drafting.wait, PATIENCE_S)
        for tag in tags[1:]:
            await client.ask(tag, 1, [1], new=0)
        await until_status(hub, lambda facts: facts["queue"]["requests"] == 5)
        go_on.set()
        drafts = [await client.receive_draft() for _ in tags]
        assert len({draft.service_us for draft in drafts[1:]}) == 1
        facts = await until_status(hub, lambda facts: facts["drafters"][0]["service"]["passes"] == 2)
        assert (facts["batches"]["last"], facts["batches"]["sizes"][:6]) == (5, [1, 0, 0, 0, 1, 0])
        drafter = facts["drafters"][0]
        assert (drafter["passes"], drafter["drafts"]) == (2, 6)
        assert (facts["policy"], facts["policy_in_use"]) == ("latency", "latency")
        families = {f.name: f for f in text_string_to_metric_families((await hub.get("/metrics"))[1])}
        buckets = {s.labels.get("le"): s.value for s in families["starsd_batch_sessions"].samples}
        assert (buckets["1.0"], buckets["4.0"], buckets["8.0"], buckets["+Inf"]) == (1, 1, 2, 2)
        in_use = [s.labels["policy"] for s in families["starsd_policy_in_use"].samples]
        assert in_use == ["latency"]


async def test_metrics_are_well_formed_whatever_targets_call_themselves() -> None:
    async with running_hub([model()]) as hub:
        clients = []
        for name in ('quote"d', "new\nline", "twin", "twin", "back\\slash", "é"):
            client = HubClient(await hub.client_websocket())
            await client.introduce(target=name)
            clients.append(client)
        tag = await clients[0].open([1, 2])
        await clients[0].draft(tag, 1, [1, 2], new=1)
        await until_status(hub, lambda facts: all(target["rtt_ms"] is not None for target in facts["targets"]))
        code, body = await hub.get("/metrics")
        for client in clients:
            await client.websocket.close()
    assert code == 200
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert families["starsd_hub_sessions"].samples[0].value == 1
    labels = [sample.labels["target"] for sample in families["starsd_rtt_seconds"].samples]
    assert len(labels) == len(set(labels)) == 6
    assert {'quote"d', "twin", "back\\slash", "é"} < set(labels)
    drafts = {s.labels["drafter"]: s.value for s in families["starsd_spec_decode_num_drafts"].samples}
    assert drafts == {"causal-lm": 1, "ngram": 0}
    counts = [s.value for s in families["starsd_draft_seconds"].samples if s.name.endswith("_count")]
    assert counts == [1]


async def test_a_drafting_thread_that_ends_by_a_fault_is_noticed() -> None:
    def on_draft(session: int) -> None:
        raise SystemExit  # not an Exception: no fault of a session

    async with running_hub([Moody(on_draft)]) as hub, hub.client() as client:
        await client.introduce()
        tag = await client.open([1])
        await client.ask(tag, 1, [1], new=0)
        await asyncio.wait_for(hub.hub.broken.wait(), PATIENCE_S)
        assert (await hub.get("/readyz"))[0] == 503


async def test_of_two_hubs_that_start_on_one_port_at_once_the_second_says_it_is_in_use() -> None:
    with bind("127.0.0.1", 0, has_token=False) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, has_token=False) as second:  # free still: nobody listens
            first.listen()
            fallback = NgramDrafter(8)
            hub = Hub(DrafterRegistry([fallback], fallback, required=False), HubSettings(), time.monotonic)
            with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use"):
                await hub.start(second)


async def test_nothing_is_drafted_for_those_who_have_left_and_what_was_is_counted() -> None:
    """The drafter stands still over the first of 24 requests until the sockets of all are gone."""
    began, gone = threading.Event(), threading.Event()
    drafted: list[int] = []

    def on_draft(session: int) -> None:
        drafted.append(session)
        began.set()
        assert gone.wait(PATIENCE_S)

    settings = HubSettings(drafting=DraftingSettings(max_batch=1))
    async with running_hub([Moody(on_draft)], settings) as hub, hub.client() as last:
        crowd = [HubClient(await hub.client_websocket()) for _ in range(24)]
        for client in crowd:
            await client.introduce()
            tag = await client.open([1, 2, 3])
            await client.ask(tag, 1, [1, 2, 3], 2)
        assert await asyncio.to_thread(began.wait, PATIENCE_S)
        while hub.hub.facts().queue.requests < len(crowd) - 1:
            await asyncio.sleep(0.01)
        for client in crowd:
            client.websocket.transport.abort()
        while hub.hub.facts().sessions_away < len(crowd):
            await asyncio.sleep(0.01)
        assert (hub.hub.facts().queue.requests, hub.hub.facts().queue.dropped) == (0, len(crowd) - 1)
        await last.introduce()
        tag = await last.open([1, 2, 3])
        gone.set()
        await last.draft(tag, 1, [1, 2, 3], 2)
        assert len(drafted) == 2
        facts = hub.hub.facts()
        assert 0 < facts.unused_s <= facts.time.busy_s
        families = {each.name: each for each in text_string_to_metric_families((await hub.get("/metrics"))[1])}
        told = families["starsd_hub_unused_seconds"].samples[0].value
        assert facts.unused_s <= told <= hub.hub.facts().unused_s, "it goes on counting"
        assert families["starsd_stale_drops"].samples[0].value >= len(crowd) - 1


@pytest.mark.parametrize("required", [False, True])
async def test_a_drafter_that_cannot_be_warmed_up_lets_its_targets_go_and_is_offered_no_more(required: bool) -> None:
    """Also those that came before it was known: they ask again, and are offered what works or told why nothing is."""
    begin = threading.Event()
    drafter = Moody(lambda session: None)

    def warm_up() -> None:
        assert begin.wait(20)
        raise OSError("no such device")

    drafter.warm_up = warm_up  # type: ignore[method-assign]
    async with running_hub([drafter], required=required) as hub:
        async with hub.client() as early:
            assert (await early.introduce()).drafter == "moody"
            await early.open([1, 2, 3])
            begin.set()
            error = await early.expect(Error)
            assert (error.code, error.scope) == ("drafter_failed", "connection")
            assert "could not be warmed up (OSError)" in error.message
            with pytest.raises(ConnectionClosed):
                await early.receive()
        assert (await status(hub))["sessions"] == 0
        async with hub.client() as late:
            if required:
                await late.send(hello())
                refusal = await late.expect(Error)
                assert (refusal.code, refusal.scope) == ("fingerprint", "connection")
                assert "moody: it could not be warmed up (OSError)" in refusal.message
                return
            welcome = await late.introduce()
            assert welcome.drafter == "ngram"
            assert "moody: it could not be warmed up (OSError)" in welcome.notice
            tag = await late.open([1, 2, 1, 2])
            assert (await late.draft(tag, 1, [1, 2, 1, 2], 3)).ids
