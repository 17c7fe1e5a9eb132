"""Tokens per second against plain decoding, in simulated time: the real decode loop, a scripted hub."""

from __future__ import annotations

from functools import lru_cache

import pytest

from starsd_edge.protocol.codes import EMPTY, LATE, LOCAL, POOR
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import HUB, NGRAM
from starsd_jetson.drafting import NgramDrafts
from starsd_jetson.wait_policy import WaitPolicy
from tests.support.simulated_star import HubScript, Outcome, Scene, growing, steady

TREES = DraftShape(8, 4, 2)
ALWAYS_S = 10.0
RECOVERED = 90
"""Tokens after which a hub that became good is used again: the longest gap between trials, and some trials."""


def steep(rows: int) -> float:
    """On a CPU with few cores a row costs a quarter of a plain step."""
    return 0.035 * (1 + 0.25 * (rows - 1))


@lru_cache
def plain_tokens_per_s(scene: Scene) -> float:
    return scene.plain().tokens_per_s


def against_plain(name: str, scene: Scene, outcome: Outcome) -> float:
    """Times plain decoding, printed."""
    ratio = outcome.tokens_per_s / plain_tokens_per_s(scene)
    reasons = " ".join(f"{why}={rounds}" for why, rounds in sorted(outcome.answer.stats.why_off.items()))
    by_hub = outcome.answer.stats.by_origin.get(HUB, 0)
    print(f"{name}: {ratio:.3f} x plain, {by_hub} rounds with the hub, {len(outcome.requests)} requests, {reasons}")
    return ratio


@pytest.mark.parametrize(("rtt_ms", "acceptance"), [(50, 0.0), (50, 0.4), (50, 0.8), (200, 0.9)])
def test_a_far_hub_never_slows_a_target_down(rtt_ms: float, acceptance: float) -> None:
    scene = Scene(tokens=160)
    outcome = scene.with_hub(steady(rtt_ms, acceptance))
    ratio = against_plain(f"RTT {rtt_ms} ms, acceptance {acceptance}", scene, outcome)
    assert ratio >= 0.98
    if rtt_ms == 50 and acceptance >= 0.8:
        assert ratio > 1.1, "late trees that still fit pay"
        assert outcome.answer.stats.late > 0


@pytest.mark.parametrize(
    ("rtt_ms", "verify_s", "shape"), [(0.2, growing, TREES), (0.2, steep, DraftShape(4, 4)), (50, growing, TREES)]
)
def test_a_drafter_that_is_always_wrong_costs_next_to_nothing(rtt_ms: float, verify_s, shape: DraftShape) -> None:  # type: ignore[no-untyped-def]
    scene = Scene(tokens=160, verify_s=verify_s, shape=shape)
    outcome = scene.with_hub(steady(rtt_ms, 0.0, wide=True))
    assert against_plain(f"always wrong, RTT {rtt_ms} ms, {verify_s.__name__}", scene, outcome) >= 0.97
    assert sum(done.drafted > 0 for done in outcome.rounds) <= 4
    assert len(outcome.requests) <= 20
    assert outcome.rounds[-1].why_off in {POOR, LATE}
    assert outcome.answer.stats.why_off[POOR] > 120


def test_a_hub_without_guesses_costs_next_to_nothing() -> None:
    scene = Scene(tokens=160)
    outcome = scene.with_hub(HubScript(lambda said: 0.02, lambda said: None))
    assert against_plain("no guesses", scene, outcome) >= 0.97
    assert outcome.answer.stats.why_off[EMPTY] > 120
    assert len(outcome.requests) <= 45


@pytest.mark.parametrize("shape", [DraftShape(4, 4), TREES], ids=["chains", "trees"])
@pytest.mark.parametrize("acceptance", [0.7, 0.9])
def test_a_near_and_good_hub_gives_what_always_waiting_gives(acceptance: float, shape: DraftShape) -> None:
    scene, script = Scene(tokens=200, shape=shape), steady(1, acceptance, wide=True)
    outcome, always = scene.with_hub(script), scene.with_hub(script, WaitPolicy(ALWAYS_S))
    against_plain(f"RTT 1 ms, acceptance {acceptance}", scene, outcome)
    against_plain("   always waiting", scene, always)
    assert outcome.tokens_per_s >= 0.95 * always.tokens_per_s
    assert outcome.tokens_per_s > 1.5 * plain_tokens_per_s(scene)


def first_round_after(outcome: Outcome, said: int) -> int:
    """Tokens said after these until a round was drafted by the hub."""
    tokens = 1
    for done in outcome.rounds:
        if tokens >= said and done.origin == HUB:
            return tokens - said
        tokens += done.emitted
    raise AssertionError("the hub was not used again")


def tokens_per_s_after(outcome: Outcome, said: int) -> float:
    """Of the rounds after so many tokens."""
    tokens, counted, seconds = 1, 0, 0.0
    for done in outcome.rounds:
        if tokens >= said:
            counted, seconds = counted + done.emitted, seconds + done.round_s
        tokens += done.emitted
    return counted / seconds


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("right again", HubScript(lambda said: 0.001, lambda said: 0.9 if said >= 150 else 0.0)),
        ("right again, far", HubScript(lambda said: 0.05, lambda said: 0.9 if said >= 150 else 0.0)),
        ("near again", HubScript(lambda said: 0.001 if said >= 150 else 0.6, lambda said: 0.9)),
    ],
)
def test_a_hub_that_becomes_good_again_is_used_again(name: str, script: HubScript) -> None:
    scene = Scene(tokens=300)
    outcome = scene.with_hub(script)
    ratio = against_plain(name, scene, outcome)
    waited = first_round_after(outcome, 150)
    print(f"   used again after {waited} tokens")
    assert waited <= RECOVERED
    assert ratio > 1.05


def test_a_hub_that_becomes_bad_is_left() -> None:
    scene = Scene(tokens=300)
    outcome = scene.with_hub(HubScript(lambda said: 0.001, lambda said: 0.0 if said >= 60 else 0.9))
    against_plain("wrong from the 60th token on", scene, outcome)
    assert tokens_per_s_after(outcome, 60) >= 0.97 / growing(1)
    assert not any(done.drafted for done in outcome.rounds[-150:])


def test_one_that_wavers_is_worth_what_it_is_worth() -> None:
    scene = Scene(tokens=240)
    for name, script in {
        "RTT from 5 to 120 ms": HubScript(lambda said: (5, 120, 40, 80)[said % 4] / 1e3, lambda said: 0.7),
        "good and bad by turns": HubScript(lambda said: 0.01, lambda said: 0.9 if said // 30 % 2 else 0.0),
    }.items():
        assert against_plain(name, scene, scene.with_hub(script)) >= 0.98


@pytest.mark.parametrize("verify_s", [growing, steep])
@pytest.mark.parametrize("seed", [2, 4])
def test_own_guesses_never_slow_a_target_down(seed: int, verify_s) -> None:  # type: ignore[no-untyped-def]
    scene = Scene(tokens=160, verify_s=verify_s, seed=seed)
    outcome = scene.alone(NgramDrafts())
    assert against_plain(f"n-grams, text {seed}, {verify_s.__name__}", scene, outcome) >= 0.98


def test_own_guesses_that_are_better_than_the_hubs_are_used() -> None:
    scene = Scene(tokens=200)
    alone, both = scene.alone(NgramDrafts()), scene.with_hub(steady(10, 0.7), fallback=NgramDrafts())
    hub = scene.with_hub(steady(10, 0.7))
    for name, outcome in {"n-grams": alone, "hub": hub, "both": both}.items():
        against_plain(name, scene, outcome)
    assert both.tokens_per_s >= 0.97 * max(alone.tokens_per_s, hub.tokens_per_s)
    assert both.answer.stats.by_origin[NGRAM] > 10
    assert both.answer.stats.why_off.get(LOCAL, 0) + both.answer.stats.why_off[LATE] > 10
