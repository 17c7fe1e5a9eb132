"""A target with features, a hub with a head: over the wire comes what the head would guess beside the target."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from starsd_edge.protocol.hub_side import HubAction, HubLimits, HubProtocol, Notice, Send
from starsd_edge.protocol.target_side import DraftArrived, TargetEvent, TargetProtocol
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_server.draft_queue import DraftQueue, Work
from starsd_server.drafter_pool import Drafted, DrafterPool
from starsd_server.drafters.contract import DrafterRegistry
from starsd_server.drafters.eagle import FEATURES_OF
from starsd_server.drafters.ngram import NgramDrafter
from tests.support.decoding import WORDS, Plain, request
from tests.support.hub_client import running_hub
from tests.support.linked_target import LinkedTarget, SlowEngine
from tests.support.random_heads import (
    FEATURE_FP,
    VOCAB,
    WIDTH,
    drafter_on,
    fresh_tree,
    random_engine,
    rows_of_text,
)
from tests.support.wire import Clock, a_hello, promised

SHAPE = DraftShape(12, 4, 3)
CODECS = ("f2", "i1")
KINDS = ("eagle", "eagle3")


class EagleStar:
    """One target and one hub whose drafting thread works when the frames have arrived."""

    def __init__(self, codec: str, window: int | None = None, kind: str = "eagle") -> None:
        self.engine = random_engine(kind)
        drafters = [drafter_on(self.engine)]
        self.queue = DraftQueue()
        self.pool = DrafterPool([*drafters, NgramDrafter(8)], lambda: 0.0)
        self.hub = HubProtocol(
            "hub-1",
            DrafterRegistry(drafters, NgramDrafter(8), required=True).offer,
            HubLimits(),
            iter([bytes([number]) * 16 for number in range(9)]).__next__,
        )
        self.hub.ready("eagle")
        hello = a_hello(
            vocab_size=VOCAB,
            feature_fp=FEATURE_FP,
            feature_kind=FEATURES_OF[kind],
            feature_width=WIDTH,
            codecs=[codec],
        )
        self.target = TargetProtocol(hello, Clock(), window)
        self.connect()

    def connect(self) -> None:
        """A new connection in place of the old one."""
        self.connection = self.hub.connect("alice")
        self.target.connected()
        self.pump()

    def pump(self) -> list[TargetEvent]:
        """Carry frames and draft until nothing is left to do; the target's events."""
        events: list[TargetEvent] = []
        while True:
            actions = [action for frame in self.target.frames() for action in self.receive(frame)]
            work = None if actions else self.queue.take(0.0)
            if not actions and work is None:
                return events
            if work is not None:
                actions = self.do(work)
            for action in actions:
                if isinstance(action, Send):
                    events += self.target.receive(action.frame)
                else:
                    self.queue.put(action)  # type: ignore[arg-type]

    def receive(self, frame: bytes) -> list[HubAction]:
        """A frame reaches the hub; what it has to do."""
        actions = self.connection.receive(frame, 0.0, self.queue.waiting_bytes("alice"))
        return [action for action in actions if not isinstance(action, Notice)]

    def do(self, work: Work) -> list[HubAction]:
        """A turn of the drafting thread, and what the hub makes of it."""
        actions: list[HubAction] = []
        for outcome in self.pool.do(work).outcomes:
            assert isinstance(outcome, Drafted), outcome
            actions += self.hub.answer(outcome.session, outcome.epoch, outcome.base_len, outcome.tree, 0, 0, 0.0)
        return actions

    def tree(self) -> DraftTree:
        """The tree of the one draft that arrives now."""
        (arrived,) = [event for event in self.pump() if isinstance(event, DraftArrived)]
        return arrived.tree


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("window", [None, 6])
def test_trees_over_the_wire_are_those_of_the_head_on_the_promised_features(
    kind: str, codec: str, window: int | None
) -> None:
    star = EagleStar(codec, window, kind)
    ids, features = rows_of_text(60)
    seen = promised(features, codec)
    end = 21
    session = star.target.open_session([3, *ids[: end - 1]], "greedy")
    star.pump()
    session.append(ids[:end], features[:end])
    session.extend()
    star.pump()
    first = 0 if window is None else end - window
    for rows in (0, 3, 1, 5, 2, 4):
        session.append(ids[end : end + rows], features[end : end + rows])
        end += rows
        if rows == 5:  # the connection breaks, and the session goes on
            star.connect()
        assert session.request(SHAPE) is not None
        tree = star.tree()
        assert len(tree) == SHAPE.max_nodes
        assert tree == fresh_tree(star.engine, ids[first:end], seen[first:end], SHAPE)
    star.target.close_session(session)
    star.pump()
    assert star.pool.health["eagle"].sessions == 0


@pytest.mark.parametrize("codec", CODECS)
def test_features_go_up_in_the_bytes_of_their_codec(codec: str) -> None:
    star = EagleStar(codec)
    ids, features = rows_of_text(40)
    session = star.target.open_session([3], "greedy")
    star.pump()
    session.append(ids, features)
    session.extend()
    star.pump()
    row = {"f2": 2 * WIDTH, "i1": WIDTH + 2}[codec]
    assert 40 * row <= star.target.counters.bytes_up["Extend"] <= 40 * (row + 2) + 48


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("window", [None, 4])
async def test_a_target_over_a_real_link_says_what_it_says_alone(kind: str, codec: str, window: int | None) -> None:
    """The head is random: now and then it guesses right, and whether it does must not show."""
    wanted = request(shape=SHAPE, max_tokens=60)
    engine = SlowEngine(1, max_context=wanted.context, feature_width=WIDTH)
    engine.spec = replace(engine.spec, feature_kind=FEATURES_OF[kind])
    head = random_engine(kind, vocab_size=WORDS, draft_vocab_size=WORDS - 1)
    async with (
        running_hub([drafter_on(head)], required=True) as hub,
        LinkedTarget(hub.url, wanted, engine=engine, codecs=[codec], window=window, wait_s=20.0) as target,
    ):
        await asyncio.to_thread(target.connect)
        answer = await asyncio.to_thread(target.answer)
    assert Plain.of(answer) == target.plain()
    assert answer.stats.by_origin.get("hub", 0) > 0
