"""Drafts from a hub that is in time, late, silent, away or wrong: when they are asked for, awaited, rebased, used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from starsd_edge.protocol.codes import CLAMPED, CLOSED, EMPTY, LATE, SILENT
from starsd_edge.protocol.target_side import DraftArrived
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_jetson.decoder import decode
from starsd_jetson.drafting import DraftSource, NgramDrafts, NoDrafts
from starsd_jetson.hub_drafting import Asked, HubDrafts
from starsd_jetson.wait_policy import FIRST_GAP, WaitPolicy
from tests.support.decoding import Plain, letters, next_token, plain_answer, request
from tests.support.draft_sources import future
from tests.support.prefix_engine import PrefixEngine
from tests.support.trees import random_tree, tree_of

CHAIN = DraftShape(4, 4)
NEVER = float("inf")


class Clock:
    """Time that passes only while something waits or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeChannel:
    """A hub whose answers are made by `answer(epoch, text)` -> (seconds, tree, base_len), each delivered when due."""

    clock: Clock
    answer: Callable[[int, list[int]], tuple[float, DraftTree, int]]
    is_there: Callable[[], bool] = lambda: True
    text: list[int] = field(default_factory=list)
    pending: int | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, base_len)"""
    due: list[tuple[float, DraftArrived]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    closed: bool = False
    clamped_rows: int = 0

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        self.text.extend(ids)

    def extend(self) -> None:
        pass

    def request(self, shape: DraftShape) -> Asked | None:
        assert self.pending is None, "one request at a time"
        if not self.is_there():
            return None
        epoch = len(self.asked) + 1
        self.asked.append((epoch, len(self.text) - 1))
        self.pending = epoch
        delay, tree, base_len = self.answer(epoch, list(self.text))
        arrived = DraftArrived(None, epoch, base_len, tree, round(delay * 1e6) if delay < NEVER else 0, 0, 0, 0, 40)  # type: ignore[arg-type]
        arrived = replace(arrived, clamped_rows=self.clamped_rows)
        self.due.append((self.clock.now + delay, arrived))
        return Asked(epoch, 50)

    def wait(self, timeout_s: float) -> DraftArrived | None:
        self.waits.append(timeout_s)
        if not self.is_there():
            self.pending = None
            return None
        ready = [item for item in self.due if item[0] <= self.clock.now + timeout_s]
        if not ready:
            self.clock.now += timeout_s
            return None
        at, arrived = min(ready, key=lambda item: item[0])
        self.due.remove((at, arrived))
        self.clock.now = max(self.clock.now, at)
        if self.pending is not None and arrived.epoch >= self.pending:
            self.pending = None
        return arrived

    def give_up(self) -> None:
        self.pending = None

    def close(self) -> None:
        self.closed = True


def used_to(round_trip_s: float, plain_s: float = 0.1) -> WaitPolicy:
    """What a target knows after some rounds with a hub that is as quick as that."""
    wait_policy = WaitPolicy()
    for _ in range(20):
        wait_policy.cost_model.times.add(1, plain_s)
        wait_policy.answered(round_trip_s)
    return wait_policy


class Desk:
    """A source on a fake channel, driven by hand. Of the hub it expects an answer after so long."""

    def __init__(
        self, answer: Callable[[int, list[int]], tuple[float, DraftTree, int]], round_trip_s: float = 0.02
    ) -> None:
        self.clock = Clock()
        self.channel = FakeChannel(self.clock, answer, text=[9])
        self.source = HubDrafts(lambda prompt, kind: self.channel, NoDrafts(), used_to(round_trip_s), self.clock)
        self.source.begin([9], "greedy")

    def round(self, new: Sequence[int], verify_s: float = 0.1) -> list[int]:
        """Emit these tokens, ask, take, verify; the tokens of the tree."""
        self.source.append(new, None)
        self.source.ask(CHAIN)
        tree = self.source.take().tree
        self.clock.now += verify_s
        return tree.tokens.tolist()


def root_of(text: list[int]) -> int:
    return len(text) - 1


def test_draft_in_time_is_used() -> None:
    desk = Desk(lambda epoch, text: (0.02, DraftTree.chain([epoch, 7]), root_of(text)))
    assert desk.round([1, 2, 3]) == [1, 7]
    assert desk.round([4]) == [2, 7]
    assert desk.channel.asked == [(1, 3), (2, 4)]


def test_late_draft_is_rebased_onto_what_was_emitted_meanwhile() -> None:
    slow = DraftTree.chain([5, 6, 7, 8])
    desk = Desk(lambda epoch, text: (0.25, slow, root_of(text)))
    assert desk.round([1]) == []  # 30 ms of waiting, 0.1 s of verifying
    assert desk.round([5], verify_s=0.2) == []  # the request is still out: no second one, no waiting
    assert desk.round([6]) == [7, 8]
    assert desk.channel.asked == [(1, 1)]


def test_late_draft_of_another_path_is_dropped_and_asked_anew() -> None:
    desk = Desk(lambda epoch, text: (0.15 if epoch == 1 else 0.01, DraftTree.chain([5, 6, 7]), root_of(text)))
    assert desk.round([1], verify_s=0.2) == []
    assert desk.round([8]) == [5, 6, 7]
    assert desk.channel.asked == [(1, 1), (2, 2)]


def test_late_draft_that_was_caught_up_with_is_dropped() -> None:
    desk = Desk(lambda epoch, text: (0.15 if epoch == 1 else NEVER, DraftTree.chain([5, 6]), root_of(text)))
    assert desk.round([1], verify_s=0.2) == []
    assert desk.round([5, 6, 7]) == []
    assert desk.channel.asked == [(1, 1), (2, 4)]


def test_waiting_happens_once_per_request() -> None:
    desk = Desk(lambda epoch, text: (NEVER, DraftTree.empty(), 0))
    for _ in range(7):
        desk.round([1])
    assert desk.clock.now == pytest.approx(0.03 + 7 * 0.1, abs=0.002)


def test_silent_hub_is_asked_less_and_less() -> None:
    desk = Desk(lambda epoch, text: (NEVER, DraftTree.empty(), 0))
    for _ in range(600):
        desk.round([1])
    assert desk.clock.now - 600 * 0.1 < 2 * 0.03
    assert len(desk.channel.asked) <= 7


def test_hub_that_is_away_costs_nothing() -> None:
    desk = Desk(lambda epoch, text: (0.0, DraftTree.empty(), 0))
    desk.channel.is_there = lambda: False
    for _ in range(5):
        assert desk.round([1]) == []
    assert desk.clock.now == pytest.approx(5 * 0.1)


def test_hub_that_leaves_while_awaited_is_not_waited_for() -> None:
    desk = Desk(lambda epoch, text: (NEVER, DraftTree.empty(), 0))
    desk.source.append([1], None)
    desk.source.ask(CHAIN)
    desk.channel.is_there = lambda: False
    assert len(desk.source.take().tree) == 0
    assert desk.clock.now == 0
    desk.channel.is_there = lambda: True
    desk.channel.answer = lambda epoch, text: (0.01, DraftTree.chain([3]), root_of(text))
    assert desk.round([2]) == [3]


@pytest.mark.parametrize("base_len", [-1, 3, 500])
def test_draft_for_a_root_that_never_was_is_dropped(base_len: int) -> None:
    desk = Desk(lambda epoch, text: (0.01, DraftTree.chain([1]), base_len))
    assert desk.round([1]) == []


def test_nothing_is_asked_when_no_draft_fits() -> None:
    desk = Desk(lambda epoch, text: (0.01, DraftTree.chain([1]), root_of(text)))
    desk.source.append([1], None)
    desk.source.ask(DraftShape(4, 0))
    assert len(desk.source.take().tree) == 0
    assert desk.channel.asked == []


def test_bytes_and_waits_are_reported_once() -> None:
    desk = Desk(lambda epoch, text: (0.02, DraftTree.chain([1]), root_of(text)))
    desk.source.append([1], None)
    desk.source.ask(CHAIN)
    draft = desk.source.take()
    assert (draft.origin, draft.late, draft.bytes_up, draft.bytes_down) == ("hub", False, 50, 40)
    assert draft.wait_s == pytest.approx(0.02)
    desk.channel.is_there = lambda: False
    desk.source.ask(CHAIN)
    draft = desk.source.take()
    assert (draft.origin, draft.bytes_up, draft.bytes_down) == ("none", 0, 0)


@pytest.mark.parametrize(
    ("after_s", "tree", "rounds", "why"),
    [
        (0.02, DraftTree.chain([3]), 1, ""),
        (0.02, DraftTree.empty(), 1, EMPTY),
        (0.4, DraftTree.chain([3]), 1, LATE),  # still on its way
        (0.1, DraftTree.chain([3]), 2, LATE),  # it came, for a path that was not taken
        (NEVER, DraftTree.empty(), 1, LATE),
        (NEVER, DraftTree.empty(), 20, SILENT),
    ],
)
def test_it_says_why_a_round_has_no_draft_of_the_hub(after_s: float, tree: DraftTree, rounds: int, why: str) -> None:
    desk = Desk(lambda epoch, text: (after_s if epoch == 1 or after_s == NEVER else NEVER, tree, root_of(text)))
    for _ in range(rounds):
        desk.round([1])
    assert desk.source.why_off == why


@pytest.mark.parametrize(
    ("after_s", "tree", "why"),
    [
        (0.02, DraftTree.empty(), CLAMPED),
        (0.02, DraftTree.chain([3]), ""),
        (0.4, DraftTree.chain([3]), LATE),  # late drafts are not late because they are weak
    ],
)
def test_weak_drafts_are_put_down_to_features_that_are_not_finite(after_s: float, tree: DraftTree, why: str) -> None:
    desk = Desk(lambda epoch, text: (after_s, tree, root_of(text)))
    desk.channel.clamped_rows = 1
    desk.round([1])
    assert desk.source.why_off == why


def test_an_absent_hub_is_given_as_the_reason_and_the_end_of_an_answer_is_none() -> None:
    desk = Desk(lambda epoch, text: (0.01, DraftTree.chain([1]), root_of(text)))
    desk.round([1])
    desk.source.ask(DraftShape(4, 0))
    desk.source.take()
    assert desk.source.why_off == ""
    desk.channel.is_there = lambda: False
    desk.round([2])
    assert desk.source.why_off == CLOSED


def test_a_trial_of_an_absent_hub_that_did_not_pay_says_that_it_is_absent() -> None:
    desk = Desk(lambda epoch, text: (0.01, DraftTree.chain([1]), root_of(text)), round_trip_s=5.0)
    desk.channel.is_there = lambda: False
    why = []
    for _ in range(2 * FIRST_GAP):
        desk.round([2])
        why.append(desk.source.why_off)
    assert set(why) == {LATE, CLOSED}


def test_a_session_that_goes_on_is_not_judged_by_the_prefill_of_its_next_answer() -> None:
    desk = Desk(lambda epoch, text: (0.9 if epoch == 4 else 0.02, DraftTree.chain([epoch]), root_of(text)))
    assert [desk.round([1], verify_s=0.005) for _ in range(3)] == [[1], [2], [3]]
    desk.source.end()
    desk.channel.text = [9]
    desk.source.begin([9], "greedy")
    while desk.channel.asked[-1][0] < 5:
        drafted = desk.round([1], verify_s=0.005)
    assert drafted == [5], "the hub is as quick as before, and waited for"


def test_answer_closes_its_session() -> None:
    desk = Desk(lambda epoch, text: (0.02, DraftTree.empty(), 0))
    desk.source.end()
    assert desk.channel.closed


# Whole answers.


class WorkingEngine(PrefixEngine):
    """Every pass takes a while on the fake clock, so that drafts come in time, late or after the answer."""

    clock: Clock

    def forward(self, *arguments, **named):  # type: ignore[no-untyped-def]
        self.clock.now += 0.03
        return super().forward(*arguments, **named)


def unreliable(
    seed: int, engine: PrefixEngine, sampling: SamplingParams
) -> Callable[..., tuple[float, DraftTree, int]]:
    """Right, half right and random drafts, in any time, sometimes for another root."""
    rng = np.random.default_rng(seed)

    def answer(epoch: int, text: list[int]) -> tuple[float, DraftTree, int]:
        true = future(lambda prefix: next_token(engine, sampling, prefix), text, int(rng.integers(1, 9)))
        broken = [*true[:2], int(rng.integers(24))]
        tree = [tree_of([true, broken]), tree_of([broken, true]), random_tree(rng, DraftShape(9, 4, 3), 24)][
            rng.integers(3)
        ]
        delay = float(rng.choice([0.001, 0.02, 0.1, 0.3, 5.0, NEVER], p=[0.3, 0.2, 0.2, 0.2, 0.05, 0.05]))
        return delay, tree, len(text) - 1 - int(rng.choice([0, 0, 0, 0, 1, -1, 4]))

    return answer


def flickering(seed: int) -> Callable[[], bool]:
    """A link that is down now and then."""
    rng = np.random.default_rng(seed)
    return lambda: bool(rng.random() < 0.9)


@pytest.mark.parametrize("fallback", [NoDrafts, NgramDrafts])
@pytest.mark.parametrize("shape", [DraftShape(4, 4, 1), DraftShape(12, 5, 3)])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_text_does_not_depend_on_the_hub(
    temperature: float, shape: DraftShape, fallback: Callable[[], DraftSource]
) -> None:
    origins: dict[str, int] = {}
    late = 0
    for seed in range(5):
        clock = Clock()
        engine = WorkingEngine(seed)
        engine.clock = clock
        wanted = request(sampling=SamplingParams(temperature, seed=seed), shape=shape, max_tokens=60)
        channel = FakeChannel(clock, unreliable(seed, engine, wanted.sampling), flickering(seed))

        def open_channel(prompt: Sequence[int], kind: str, channel: FakeChannel = channel) -> FakeChannel:
            channel.text.append(prompt[0])
            return channel

        source = HubDrafts(open_channel, fallback(), WaitPolicy(), clock)
        answer = decode(engine, letters([]), wanted, source, clock=clock)
        assert Plain.of(answer) == plain_answer(engine, letters([]), wanted)
        for origin, rounds in answer.stats.by_origin.items():
            origins[origin] = origins.get(origin, 0) + rounds
        late += answer.stats.late
    assert origins["hub"] > 5
    assert late > 0
