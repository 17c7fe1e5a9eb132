"""Both machines over a network that loses, repeats, delays and breaks: they never err, and agree once it is whole
again.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from starsd_edge.protocol.messages import HubMessage, TargetMessage
from starsd_edge.speculation.tree import DraftShape, DraftTree
from tests.support.lossy_star import LossyStar
from tests.support.wire import VOCAB

MAX_SESSIONS = 5
CODECS = ["none", "f2", "i1"]
WINDOWS = [None, 1, 20]
MISHAPS = ["cut", "notice", "warm", "fail", "restart"]
WAITS = [0.01, 0.6, 1.1, 31.0]

some = st.integers(0, 9)
shapes = st.builds(DraftShape, st.integers(0, 20), some, st.integers(0, 20))


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Any tree, larger ones than asked among them."""
    parents: list[int] = []
    path: list[int] = []
    for node in range(draw(st.integers(0, 14))):
        path = path[: draw(st.integers(0, len(path)))]
        parents.append(path[-1] if path else -1)
        path.append(node)
    return DraftTree(np.arange(len(parents)) * 7 % VOCAB, np.asarray(parents, dtype=np.int32))


def a_talking_star(codec: str, sessions: int, dedicated: bool, window: int | None) -> LossyStar:
    """In the middle of a conversation."""
    star = LossyStar(codec, dedicated, window)
    for _ in range(sessions):
        star.open()
    star.mishap("warm", 0)
    star.connect()
    star.pump()
    return star


class LossyConversation(RuleBasedStateMachine):
    @initialize(
        codec=st.sampled_from(CODECS),
        sessions=st.integers(1, MAX_SESSIONS),
        dedicated=st.booleans(),
        window=st.sampled_from(WINDOWS),
    )
    def begin(self, codec: str, sessions: int, dedicated: bool, window: int | None) -> None:
        self.star = a_talking_star(codec, sessions, dedicated, window)

    @precondition(lambda self: self.star.sessions)
    @rule(which=some, rows=some, shape=shapes, whole=st.booleans(), tree=trees())
    def a_round(self, which: int, rows: int, shape: DraftShape, whole: bool, tree: DraftTree) -> None:
        self.star.round(which, rows, shape, whole, tree)

    @precondition(lambda self: self.star.sessions)
    @rule(which=some, rows=some)
    def a_prefill(self, which: int, rows: int) -> None:
        self.star.prefill(which, rows)

    @rule(which=some)
    def a_session_begins_or_ends(self, which: int) -> None:
        self.star.begin_or_end(which, MAX_SESSIONS)

    @precondition(lambda self: any(wire.up for wire in self.star.wires))
    @rule(which=some, frames=st.integers(1, 6))
    def frames_reach_the_hub(self, which: int, frames: int) -> None:
        self.star.deliver_up(which, frames)

    @precondition(lambda self: any(wire.down for wire in self.star.wires))
    @rule(which=some, frames=st.integers(1, 6))
    def frames_reach_the_target(self, which: int, frames: int) -> None:
        self.star.deliver_down(which, frames)

    @precondition(lambda self: self.star.queued)
    @rule(which=some, tree=trees())
    def the_drafter_finishes(self, which: int, tree: DraftTree) -> None:
        self.star.draft(which, tree)

    @precondition(lambda self: self.star.wire is not None and (self.star.wire.up or self.star.wire.down))
    @rule(upwards=st.booleans(), twice=st.booleans())
    def a_frame_is_lost_or_repeated(self, upwards: bool, twice: bool) -> None:
        self.star.spoil(upwards, twice)

    @rule(noticed=st.booleans(), late=st.booleans())
    def a_reconnect(self, noticed: bool, late: bool) -> None:
        self.star.reconnect(noticed, late)

    @rule(kind=st.sampled_from(MISHAPS), which=some)
    def a_mishap(self, kind: str, which: int) -> None:
        self.star.mishap(kind, which)

    @rule(seconds=st.sampled_from(WAITS))
    def time_passes(self, seconds: float) -> None:
        self.star.wait(seconds)

    @invariant()
    def the_hub_holds_prefixes(self) -> None:
        self.star.check()

    def teardown(self) -> None:
        self.star.settle()


LossyConversation.TestCase.settings = settings(max_examples=120, stateful_step_count=50)


class TestLossyConversation(LossyConversation.TestCase):
    """Hypothesis drives it: few deep conversations, but whatever fails is shrunk to its core."""


def a_random_tree(random: np.random.Generator) -> DraftTree:
    """A chain, small enough for most requests."""
    return DraftTree.chain(list(range(random.integers(0, 5))))


def step(star: LossyStar, random: np.random.Generator) -> None:
    """One move, mostly one that carries the conversation on."""
    moves = ["round", "prefill", "session", "up", "down", "draft", "spoil", "reconnect", "mishap", "wait"]
    move = random.choice(moves, p=[0.26, 0.08, 0.04, 0.2, 0.2, 0.1, 0.06, 0.02, 0.01, 0.03])
    which, few = int(random.integers(0, 10)), int(random.integers(1, 7))
    if star.wire is None or move == "reconnect":
        star.reconnect(noticed=bool(random.random() < 0.5), late=bool(random.random() < 0.3))
    elif move == "round" and star.sessions:
        shape = DraftShape(int(random.integers(0, 12)), few, int(random.integers(0, 4)))
        star.round(which, few // 2, shape, bool(random.random() < 0.5), a_random_tree(random))
    elif move == "prefill" and star.sessions:
        star.prefill(which, few)
    elif move == "session":
        star.begin_or_end(which, MAX_SESSIONS)
    elif move == "up" and any(wire.up for wire in star.wires):
        star.deliver_up(which, few)
    elif move == "down" and any(wire.down for wire in star.wires):
        star.deliver_down(which, few)
    elif move == "draft" and star.queued:
        star.draft(which, a_random_tree(random))
    elif move == "spoil":
        star.spoil(bool(random.random() < 0.5), bool(random.random() < 0.5))
    elif move == "mishap":
        star.mishap(str(random.choice(MISHAPS)), which)
    elif move == "wait":
        star.wait(float(random.choice(WAITS)))


def test_long_walks_over_a_lossy_network_settle_and_meet_every_message() -> None:
    met: Counter[str] = Counter()
    ports: Counter[str] = Counter()
    for seed in range(300):
        random = np.random.default_rng(seed)
        sessions = int(random.integers(1, MAX_SESSIONS))
        star = a_talking_star(str(random.choice(CODECS)), sessions, seed % 2 == 0, WINDOWS[seed % 3])
        for _ in range(120):
            step(star, random)
            star.check()
        met += star.target.counters.frames_down + star.target.counters.frames_up
        ports += star.met
        star.settle()
    assert min(ports["let in"], ports["not let in"], ports["exhausted"]) > 10
    assert set(met) == {kind.__name__ for kind in (*get_args(TargetMessage), *get_args(HubMessage))}
    assert met["Resync"] > 50
    assert met["Draft"] > 2000


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_an_undisturbed_conversation_settles(codec: str, dedicated: bool, window: int | None) -> None:
    star = LossyStar(codec, dedicated, window)
    for number in range(3):
        star.open()
        star.append(number, 20 + number)
    star.settle()
