"""Mutated frames of every kind, both ways: the only outcomes are actions and errors, and nobody else notices."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from starsd_edge.protocol.codec import decode_from_hub, decode_from_target, encode
from starsd_edge.protocol.hub_side import (
    AddRows,
    AnswerProbe,
    DropSession,
    FindPort,
    HangUp,
    HubLimits,
    HubProtocol,
    Offer,
    OpenSession,
    OwnPort,
    QueueDraft,
    Send,
    SendOn,
)
from starsd_edge.protocol.messages import (
    MAX_PROBE_BYTES,
    Close,
    Closed,
    Draft,
    DraftRequest,
    Error,
    Extend,
    HubMessage,
    Open,
    Opened,
    Probe,
    Probed,
    Ready,
    Resync,
    TargetMessage,
)
from starsd_edge.protocol.target_side import DraftArrived, SentOn, TargetEvent, TargetProtocol, TargetSession
from starsd_edge.speculation.tree import DraftShape
from tests.support.mutations import MUTATORS, Mutator, mutate_bytes
from tests.support.wire import VOCAB, WIDTH, Clock, HubUnderTest, a_hello, a_tensor, a_welcome, some_features

CODECS = ("none", "f2", "i1")
FRAMES = 16_000
"""Mutated frames of each mutator and direction."""
TAG = (2).to_bytes(16, "big")
ROWS = 4


class FuzzedHub:
    """A hub with a well-behaved target on a session of its own (key 1) and a fuzzer in the middle of a conversation."""

    def __init__(self, codec: str) -> None:
        self.tags = 0
        self.codec = codec
        self.hub = HubProtocol(
            "hub-1",
            lambda _: Offer("ngram", "fp", self.codec),
            HubLimits(max_sessions=12),
            self._new_tag,
            has_own_ports=True,
        )
        self.bystander = self.hub.connect("alice")
        self.bystander.receive(encode(a_hello(codecs=["f2", "i1"])), 0.0, 0)
        self.bystander.receive(encode(Open(1, 0, 7)), 0.0, 0)
        self.features = None if codec == "none" else a_tensor(some_features(ROWS), codec)
        self.bystander.receive(encode(Extend((1).to_bytes(16, "big"), 0, [1] * ROWS, self.features)), 0.0, 0)
        self.now = 0.0
        self.begin()

    def _new_tag(self) -> bytes:
        """The bystander's session is 1, the fuzzer's, which comes and goes, is 2, what it opens besides gets others."""
        self.tags += 1
        return self.tags.to_bytes(16, "big")

    def begin(self) -> None:
        """The fuzzer's connection and session as they were at first."""
        self.tags = 1
        self.connection = self.hub.connect("mallory")
        self.connection.receive(encode(a_hello(codecs=["f2", "i1"])), self.now, 0)
        self.connection.receive(encode(Open(1, 0, 7)), self.now, 0)
        self.connection.receive(encode(Extend(TAG, 0, [1] * ROWS, self.features)), self.now, 0)

    def end(self) -> None:
        """Its connection and all its sessions go."""
        self.connection.lost(self.now)
        self.now += 1000
        self.hub.expire(self.now)

    def corpus(self) -> list[bytes]:
        """Well-made frames for this moment."""
        features = None if self.codec == "none" else a_tensor(some_features(2), self.codec)
        messages: list[TargetMessage] = [
            a_hello(dedicated=True),
            Open(2, 0, 7, "ngram", "greedy"),
            Open(3, 0, 7, "", "", TAG),
            Extend(TAG, ROWS, [5, 6], features),
            DraftRequest(TAG, 1, ROWS + 2, ROWS, [5, 6], 15, 5, 2, features),
            DraftRequest(TAG, 1, ROWS, ROWS, [], 15, 5, 2),
            Close(TAG),
            Probe(1, b"up", 40),
            Error("x", "y", "session", TAG, 1, 10, 1),
        ]
        return [encode(message) for message in messages]


@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda mutate: mutate.__name__)
def test_mutated_frames_at_the_hub(mutate: Mutator) -> None:
    random = np.random.default_rng(0)
    outcomes: Counter[str] = Counter()
    for codec in CODECS:
        fuzzed = FuzzedHub(codec)
        corpus = fuzzed.corpus()
        for turn in range(FRAMES // len(CODECS)):
            connection = fuzzed.connection if turn % 5 else fuzzed.hub.connect("mallory")
            frame = mutate(corpus[turn % len(corpus)], random)
            actions = connection.receive(frame, fuzzed.now, 0)
            for wanted in [action for action in actions if isinstance(action, FindPort)]:
                actions += fuzzed.hub.send_on(wanted, OwnPort(9003, "ticket"))
            for action in actions:
                outcomes[type(action).__name__] += 1
                if isinstance(action, AnswerProbe):
                    assert action.connection == connection.number
                    assert len(action.payload) <= MAX_PROBE_BYTES
                elif isinstance(action, Send):
                    assert action.connection == connection.number
                    reply = decode_from_hub(action.frame)
                    outcomes[type(reply).__name__] += 1
                    if isinstance(reply, Error):
                        assert reply.message.isprintable()
                elif isinstance(action, AddRows | QueueDraft | DropSession):
                    session = action.rows.session if isinstance(action, AddRows) else action.session
                    assert session != 1
                    if isinstance(action, AddRows):
                        assert all(0 <= token < VOCAB for token in action.rows.ids)
                        assert action.rows.features is None or np.isfinite(action.rows.features).all()
                        assert (action.rows.features is None) == (codec == "none")
            if turn % 3 == 0 or any(isinstance(action, HangUp | DropSession) for action in actions):
                fuzzed.end()
                fuzzed.begin()
            view = fuzzed.hub.sessions()[0]
            assert (view.session, view.owner, view.rows, view.attached) == (1, "alice", ROWS, True)
    kinds = [Send, OpenSession, AddRows, QueueDraft, DropSession, HangUp, SendOn, AnswerProbe, Error, Opened, Closed]
    assert {kind.__name__ for kind in kinds} <= set(outcomes)


class FuzzedTarget:
    """A target that a hub has brought to some stage of a conversation."""

    STAGES = ("greeting", "welcomed", "opened", "asked")

    def __init__(self, codec: str) -> None:
        self.clock = Clock()
        self.codec = codec
        self.target = TargetProtocol(a_hello(codecs=["f2", "i1"], dedicated=True), self.clock)
        self.session: TargetSession | None = None
        self.probe = 1

    def begin(self, stage: str) -> None:
        """A new hub, a new connection, a new session, as far as `stage`."""
        self.clock.now += 1000
        if self.session is not None:
            self.target.close_session(self.session)
        self.session = self.target.open_session([7], "greedy")
        self.session.append([1] * ROWS, some_features(ROWS))
        self.ref = 1
        self.target.connected()
        if stage == "greeting":
            return
        self.target.receive(encode(a_welcome(feature_codec=self.codec, hub_id=f"hub-{self.clock.now}", probes=True)))
        frames = [decode_from_target(frame) for frame in self.target.frames()]
        self.ref = next(message.ref for message in frames if isinstance(message, Open))
        if stage in {"opened", "asked"}:
            self.target.receive(encode(Opened(self.ref, TAG, 0)))
        if stage == "asked":
            self.target.receive(encode(Ready("ngram")))
            self.session.request(DraftShape(8, 4, 2))
            self.probe = self.target.probe(4, 3) or 0
        self.target.frames()

    def corpus(self) -> list[bytes]:
        """Well-made frames for this moment."""
        messages: list[HubMessage] = [
            a_welcome(notice="hello"),
            a_welcome(reports=True, port=9003, ticket="ticket"),
            Ready("ngram"),
            Opened(self.ref, TAG, 0),
            Draft(TAG, 1, ROWS, [5, 6, 7], [-1, 0, 0], 1, 2, 3),
            Resync(TAG, 1),
            Closed(TAG, 4),
            Probed(self.probe, b"abc", 5),
            Error("too_many_probes", "y", "frame"),
            Error("x", "y", "session", TAG, 1, 10),
            Error("x", "y", "frame", TAG, 1),
            Error("unknown_session", "y", "session", TAG, 1, 10, self.ref),
        ]
        return [encode(message) for message in messages]


@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda mutate: mutate.__name__)
def test_mutated_frames_at_the_target(mutate: Mutator) -> None:
    random = np.random.default_rng(1)
    outcomes: Counter[str] = Counter()
    for codec in CODECS:
        fuzzed = FuzzedTarget(codec)
        for turn in range(FRAMES // len(CODECS)):
            if turn % 4 == 0:
                fuzzed.begin(str(random.choice(fuzzed.STAGES, p=[0.1, 0.15, 0.15, 0.6])))
                corpus = fuzzed.corpus()
            events = fuzzed.target.receive(mutate(corpus[int(random.integers(0, len(corpus)))], random))
            for event in events:
                assert isinstance(event, get_args(TargetEvent))
                outcomes[type(event).__name__] += 1
                if isinstance(event, SentOn):
                    assert 0 < event.port < 1 << 16
                    assert re.fullmatch("[A-Za-z0-9_-]{1,128}", event.ticket)
                if isinstance(event, DraftArrived):
                    assert (event.session, event.epoch, event.base_len) == (fuzzed.session, 1, ROWS)
                    assert len(event.tree) <= 8
                    assert event.tree.depth <= 4
                    assert max(event.tree.tokens.tolist(), default=0) < VOCAB
            frames = fuzzed.target.frames()
            outcomes["frames"] += len(frames)
            for frame in frames:
                decode_from_target(frame)
    assert set(outcomes) == {event.__name__ for event in get_args(TargetEvent)} | {"frames"}


@pytest.mark.parametrize(
    "hostile",
    [b"", b"\0" * 100, bytes(range(256)), b"\xdd\xff\xff\xff\xff" * 50],
    ids=["none", "zeros", "all", "arrays"],
)
def test_noise_that_never_was_a_message(hostile: bytes) -> None:
    random = np.random.default_rng(2)
    for _ in range(500):
        noise = mutate_bytes(hostile, random)
        hub = HubUnderTest()
        hub.connect().say_frame(noise)
        target = FuzzedTarget("none")
        target.begin("asked")
        assert target.target.receive(noise) == []


def test_a_fuzzer_that_is_shown_out_takes_nothing_with_it() -> None:
    fuzzed = FuzzedHub("f2")
    for _ in range(100):
        fuzzed.connection.receive(b"\xc1", 0.0, 0)
    features = a_tensor(np.zeros((1, WIDTH), np.float16))
    actions = fuzzed.bystander.receive(encode(Extend((1).to_bytes(16, "big"), ROWS, [1], features)), 0.0, 0)
    assert [type(action) for action in actions] == [AddRows]
