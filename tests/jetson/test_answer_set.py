"""Several answers on one engine: each says what it says alone, and none waits where another can run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starsd_edge.errors import EngineError, UsageError
from starsd_edge.runtime.engine import Step
from starsd_edge.speculation.sampling import SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_jetson.answer_set import NEVER, Limits
from starsd_jetson.answers import BusyError, Request
from starsd_jetson.drafting import NgramDrafts, NoDrafts
from tests.support.decoding import request
from tests.support.interleaved import CONTEXT, Scene
from tests.support.simulated_star import HubScript, growing, steady

CHAIN, TREE = DraftShape(4, 4), DraftShape(8, 4, 3)
SYSTEM = tuple(np.random.default_rng(3).integers(0, 20, size=60).tolist())


def prompts(count: int, length: int = 12, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, 20, size=length).tolist()) for _ in range(count)]


def wanted(prompt: Sequence[int], tokens: int = 200, **changes: object) -> Request:
    usual = {"max_tokens": tokens, "context": CONTEXT, "shape": CHAIN, "ignore_eos": True}
    return request(prompt=tuple(prompt), **usual | changes)


def longest_gap(times: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


def one_after_another(requests: Sequence[Request], **scene: object) -> float:
    """Seconds."""
    spent = Scene(**scene)  # type: ignore[arg-type]
    for each in requests:
        spent.add(each)
        while spent.step():
            pass
    return spent.clock.now


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_every_answer_is_that_of_its_request_alone(seed: int, data: st.DataObject) -> None:
    """Random requests at random times, cancelled or not, with a hub that may be slow, wrong, full or dying."""
    rng = random.Random(seed)
    rtt = lambda said: rng.choice([0.001, 0.02, 0.2])  # noqa: E731
    script = HubScript(rtt, lambda said: rng.choice([0.9, 0.5, None]), wide=rng.random() < 0.5)
    scene = Scene(
        script=data.draw(st.sampled_from([script, None])),
        gone_at=rng.choice([NEVER, 0.0, rng.uniform(0, 3)]),
        sessions=rng.choice([99, 2]),
        budget=rng.choice([None, 160, 400]),
        limits=Limits(rng.choice([1, 2, 4]), 99),
        fallback=rng.choice([NoDrafts, NgramDrafts]),
        wait_s=rng.choice([None, None, 0.05]),
    )
    ended: set[int] = set()
    for number in range(rng.randrange(2, 7)):
        shared = SYSTEM[: rng.choice([0, 30, 60])]
        own = tuple(rng.randrange(20) for _ in range(rng.randrange(1, 50)))
        sampling = SamplingParams(rng.choice([0.0, 0.8]), seed=rng.randrange(3))
        # Alike, so that one table of truths serves all requests of one prompt.
        each = wanted(
            (*shared, *own), 25, shape=rng.choice([CHAIN, TREE]), sampling=sampling, stop=("ab",), ignore_eos=False
        )
        scene.add(each, lambda number=number: number in ended)  # type: ignore[misc]
        for _ in range(data.draw(st.integers(0, 12))):
            scene.step()
            assert scene.budget is None or scene.sequences.held <= scene.budget
        if rng.random() < 0.25:
            ended.add(rng.randrange(number + 1))
    scene.run()
    for job in scene.jobs:
        scene.check(job)
    assert scene.answers.open == scene.answers.waiting == 0


@pytest.mark.parametrize("acceptance", [0.7, 0.85])
@pytest.mark.parametrize("shape", [CHAIN, DraftShape(8, 5, 4)])
def test_four_answers_hide_the_round_trip_of_each_other(acceptance: float, shape: DraftShape) -> None:
    """RTT 20 ms, draft 12 ms, verify 35 ms: the device is never idle, and gives 1.5 times the tokens of turns."""
    hub = steady(20, acceptance, wide=shape.branching > 1)
    requests = [wanted(prompt, shape=shape) for prompt in prompts(4)]
    scene = Scene(hub)
    for each in requests:
        scene.add(each)
    scene.run()
    for job in scene.jobs:
        scene.check(job)
    assert scene.idle_s < 0.01 * scene.clock.now
    assert one_after_another(requests, script=hub) > 1.5 * scene.clock.now
    assert one_after_another(requests) > 2 * scene.clock.now, "and plain decoding"


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("rtt_ms", [1, 20, 60, 200, 500])
def test_together_is_never_slower_than_by_turns(rtt_ms: int, count: int) -> None:
    requests = [wanted(prompt, 120) for prompt in prompts(count)]
    hub = steady(rtt_ms, 0.6)
    scene = Scene(hub)
    for each in requests:
        scene.add(each)
    scene.run()
    turns_s, plain_s = one_after_another(requests, script=hub), one_after_another(requests)
    assert scene.clock.now <= 1.02 * min(turns_s, plain_s)


def test_a_hub_too_far_for_one_answer_pays_for_many() -> None:
    """RTT 150 ms: eight answers fill the wait of each; the policy knows it, and asks."""
    requests = [wanted(prompt) for prompt in prompts(8)]
    hub = steady(150, 0.7)
    scene = Scene(hub)
    for each in requests:
        scene.add(each)
    scene.run()
    assert one_after_another(requests, script=hub) > 1.8 * scene.clock.now
    assert sum(done.origin == "hub" for done in scene.rounds) > 0.8 * len(scene.rounds)


def test_answers_take_turns_by_device_time() -> None:
    """One whose passes are wide gets fewer of them; nobody waits for more than a pass of each other."""
    scene = Scene(steady(1, 1.0))
    shapes = (CHAIN, *[DraftShape(0, 0)] * 3)
    requests = [wanted(prompt, 150, shape=shape) for prompt, shape in zip(prompts(4), shapes, strict=True)]
    for each in requests:
        scene.add(each)
    used = {id(open_): 0.0 for open_ in scene.answers._open}
    while scene.answers.open == 4 or not used:
        scene.step()
        used = {id(open_): open_.used_s for open_ in scene.answers._open} or used
        if len(used) == 4 and min(used.values()) > 0.5:
            assert max(used.values()) - min(used.values()) < 2 * growing(15)
    for pieces in scene.pieces[1:]:
        times = [at for at, _ in pieces]
        assert longest_gap(times) < 6 * growing(5)


def test_a_long_prompt_does_not_stall_the_others() -> None:
    scene = Scene()
    scene.add(wanted(prompts(1)[0], 60))
    for _ in range(10):
        scene.step()
    long = scene.add(wanted(prompts(1, 900, seed=4)[0], 5))
    scene.run()
    times = [at for at, _ in scene.pieces[0]]
    chunk_s = growing(scene.engine.spec.max_chunk)
    assert longest_gap(times) <= chunk_s + growing(1) + 1e-9
    scene.check(long)


def test_who_comes_late_is_not_owed_the_time_before() -> None:
    scene = Scene()
    scene.add(wanted(prompts(1)[0], 120))
    for _ in range(60):
        scene.step()
    scene.add(wanted(prompts(1, seed=7)[0], 40))
    scene.run()
    before = [at for at, _ in scene.pieces[0]]
    assert longest_gap(before) <= growing(12) + 2 * growing(1)


def test_what_prompts_have_in_common_runs_once() -> None:
    scene = Scene(budget=4000)
    requests = [wanted((*SYSTEM, *own), 10) for own in prompts(4)]
    for each in requests:
        scene.add(each)
    answers = scene.run()
    assert [answer.reused_tokens >= len(SYSTEM) for answer in answers] == [False, True, True, True]
    prefilled = sum(rows for rows in scene.engine.forward_sizes if rows > 1)
    assert prefilled == len(SYSTEM) + 4 * 12
    for job in scene.jobs:
        scene.check(job)


def test_a_chat_goes_on_in_its_sequence_beside_others() -> None:
    scene = Scene(budget=2000)
    texts = [(*SYSTEM, *own) for own in prompts(3)]
    for _ in range(3):
        jobs = [scene.add(wanted(text, 10)) for text in texts]
        scene.run()
        texts = [(*text, *job.result().token_ids, 1, 2, 3) for text, job in zip(texts, jobs, strict=True)]
    for answer in [job.result() for job in scene.jobs[3:]]:
        assert answer.reused_tokens >= answer.prompt_tokens - 10
    for job in scene.jobs:
        scene.check(job)


def test_sequences_stay_within_the_budget_and_requests_wait_for_room() -> None:
    scene = Scene(budget=100)
    for own in prompts(5):
        scene.add(wanted(own, 20))
    most = 0
    while scene.step():
        most = max(most, scene.answers.open)
        assert scene.sequences.held <= 100
    assert most == 3, "of 32 tokens each"
    for job in scene.jobs:
        scene.check(job)
    with pytest.raises(UsageError, match="need room for 132 tokens and the budget is 100"):
        scene.add(wanted(prompts(1)[0], 120))


def test_an_engine_without_memory_for_another_sequence_lets_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(budget=10_000)
    opened, make = [], scene.engine.open

    def scarce(capacity: int) -> object:
        if len(opened) == 2:
            raise EngineError("no memory")
        opened.append(make(capacity))
        return opened[-1]

    monkeypatch.setattr(scene.engine, "open", scarce)
    for own in prompts(5):
        scene.add(wanted(own, 20))
    scene.run()
    for job in scene.jobs:
        scene.check(job)


def test_more_than_may_wait_are_told_when_to_come_again() -> None:
    scene = Scene(limits=Limits(most_open=1, most_waiting=2))
    for own in prompts(3):
        scene.add(wanted(own, 100))
    with pytest.raises(BusyError, match="3 requests are answered or wait already: ask again in 1 s") as first:
        scene.add(wanted(prompts(1)[0]))
    assert first.value.retry_after_s == 1, "nothing is known yet"
    scene.run()
    assert scene.clock.now > 7
    for own in prompts(3):
        scene.add(wanted(own, 100))
    with pytest.raises(BusyError) as second:
        scene.add(wanted(prompts(1)[0]))
    assert second.value.retry_after_s == 4, "an answer took 3.5 s and a prefill"


def test_a_request_can_end_while_it_waits_and_while_its_prompt_is_run() -> None:
    scene = Scene(limits=Limits(most_open=2, most_waiting=9))
    ended: set[int] = set()
    for number, own in enumerate(prompts(4, 900)):
        scene.add(wanted(own, 5), lambda number=number: number in ended)  # type: ignore[misc]
    scene.step()
    ended |= {0, 3}
    scene.step()
    scene.step()
    assert [job.end is not None for job in scene.jobs] == [True, False, False, True]
    assert [scene.jobs[number].result().token_ids for number in (0, 3)] == [(), ()]
    scene.run()
    for job in scene.jobs:
        scene.check(job)
    assert sum(scene.engine.forward_sizes) < 2.2 * 900


def test_a_pass_that_fails_ends_its_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(budget=2000)
    for own in prompts(3):
        scene.add(wanted(own, 20))
    forward, passes = scene.engine.forward, iter(range(100))

    def failing(*arguments: object, **named: object) -> Step:
        if next(passes) == 7:
            raise MemoryError
        return forward(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scene.engine, "forward", failing)
    while scene.step():
        pass
    failed = [job for job in scene.jobs if isinstance(job.end, MemoryError)]
    assert len(failed) == 1
    for job in scene.jobs:
        if job not in failed:
            scene.check(job)
    again = scene.add(replace(failed[0].request))
    while scene.step():
        pass
    scene.check(again)


def test_a_request_without_a_session_of_the_hub_goes_on_by_itself() -> None:
    scene = Scene(steady(5, 0.9), sessions=1, fallback=NgramDrafts)
    for own in prompts(3):
        scene.add(wanted(own, 60))
    scene.run()
    for job in scene.jobs:
        scene.check(job)
    assert [job.result().stats.by_origin.get("hub", 0) > 0 for job in scene.jobs] == [True, False, False]  # type: ignore[union-attr]


def test_requests_that_wait_are_looked_at_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With long texts a look costs as much as a pass."""
    scene = Scene(budget=100)
    lent, lend = [0], scene.sequences.lend

    def counted(prompt: Sequence[int], capacity: int) -> object:
        lent[0] += 1
        return lend(prompt, capacity)

    monkeypatch.setattr(scene.sequences, "lend", counted)
    for own in prompts(5):
        scene.add(wanted(own, 20))
    scene.run()
    for job in scene.jobs:
        scene.check(job)
    assert lent[0] <= 3 * len(scene.jobs)
