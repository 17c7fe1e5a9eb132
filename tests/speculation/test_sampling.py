"""Choosing a token: against the definition, with ties, padding, filters, and the margin that says how close it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from starsd_edge.errors import EngineError, UsageError
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import Choice, Sampler, SamplingParams, coin
from tests.support.reference_sampling import reference_choice, reference_probabilities

NEAR_TIE = 1e-12
"""Below this, float64 sums in another order may decide differently."""


def choose(logits: object, position: int = 0, tokenizer_size: int | None = None, **params: float) -> Choice:
    row = np.asarray(logits, dtype=np.float32)
    return Sampler(SamplingParams(**params), tokenizer_size or len(row)).choose(row, position)  # type: ignore[arg-type]


logits_with_ties = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)
any_logits = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
temperatures = st.sampled_from([1e-3, 0.3, 0.7, 1.0, 2.5])
top_ks = st.integers(0, 14)
top_ps = st.one_of(st.just(1.0), st.floats(0.01, 1.0), st.sampled_from([0.25, 0.5, 0.75]))
min_ps = st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.sampled_from([0.5, 1.0]))
seeds = st.integers(0, 2**64 - 1)


@given(st.one_of(logits_with_ties, any_logits), temperatures, top_ks, top_ps, min_ps, seeds, st.integers(0, 10**6))
def test_agrees_with_the_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> None:
    choice = choose(logits, position, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    assume(choice.margin > NEAR_TIE)
    probabilities = reference_probabilities(logits, temperature, top_k, top_p, min_p)
    token, distance = reference_choice(probabilities, coin(seed, 0, position))
    assert choice.token == token
    assert choice.margin <= distance + NEAR_TIE


def test_the_two_highest_logits_decide_as_all_of_them_do() -> None:
    rng = np.random.default_rng(0)
    sampler = Sampler(SamplingParams(), tokenizer_size=90)
    for row in rng.normal(size=(50, 100)).astype(np.float32):
        ids = row.argsort()[:-3:-1].astype(np.int64)
        found = sampler.choose_from_two(ids, row[ids], 5)
        if ids.max() < 90:
            assert found == sampler.choose(row, 5)
        else:
            assert found is None


@pytest.mark.parametrize(
    ("ids", "logits"),
    [
        ([3, 5], [2.0, 2.0]),  # equals: the lowest id may be a third one
        ([3, 30], [2.0, 1.0]),
        ([30, 3], [2.0, 1.0]),
        ([-1, 3], [2.0, 1.0]),
        ([3, 5], [np.nan, 1.0]),
        ([3, 5], [2.0, np.nan]),
        ([3, 5], [np.inf, 1.0]),
        ([3, 5], [-np.inf, -np.inf]),
    ],
)
def test_two_logits_that_leave_a_doubt_decide_nothing(ids: list[int], logits: list[float]) -> None:
    sampler = Sampler(SamplingParams(), tokenizer_size=24)
    assert sampler.choose_from_two(np.array(ids), np.array(logits, np.float32), 0) is None


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.5),
        SamplingParams(logit_bias=((4, 1.0),)),
        SamplingParams(penalties=Penalties(repetition=1.1)),
        SamplingParams(min_tokens=3),
    ],
)
def test_what_is_sampled_or_processed_takes_all_logits(params: SamplingParams) -> None:
    sampler = Sampler(params, tokenizer_size=24, eos_ids=[23])
    assert sampler.choose_from_two(np.array([3, 5]), np.array([2.0, 1.0], np.float32), 2) is None


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (0, 0.999), (40, 1.0), (3000, 0.8)])
def test_agrees_with_the_definition_on_a_large_vocabulary(spread: float, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(5).standard_normal(20_000).astype(np.float32) * np.float32(spread)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    order = order[: top_k or None]
    share = np.cumsum(weights[order]) / weights[order].sum()
    kept = np.sort(order[: int(np.searchsorted(share, top_p)) + 1] if top_p < 1 else order)
    cumulative = np.cumsum(weights[kept]) / weights[kept].sum()
    for position in range(40):
        choice = choose(logits, position, temperature=1.0, top_k=top_k, top_p=top_p, seed=9)
        expected = kept[int(np.searchsorted(cumulative, coin(9, 0, position), side="right"))]
        assert choice.token == expected or choice.margin < 1e-9


@given(st.one_of(logits_with_ties, any_logits))
def test_temperature_0_takes_the_highest_logit_the_lowest_id_among_equals(logits: list[float]) -> None:
    choice = choose(logits)
    assert choice.token == logits.index(max(logits))
    others = sorted(logits)[:-1]
    assert choice.margin == (max(logits) - others[-1] if others else float("inf"))


def test_temperature_0_ignores_filters_and_seed() -> None:
    assert choose([0.0, 2.0, 1.0], top_k=1, top_p=0.1, seed=5) == choose([0.0, 2.0, 1.0])


def test_top_k_keeps_the_lowest_ids_among_equals() -> None:
    chosen = {choose([1.0, 1.0, 1.0, 1.0], p, temperature=1.0, top_k=2).token for p in range(100)}
    assert chosen == {0, 1}


def test_top_p_stops_as_soon_as_the_share_is_reached() -> None:
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    for top_p, expected in ((0.4, {0}), (0.5, {0}), (0.74, {0, 1}), (0.76, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        assert {choose(logits, p, temperature=1.0, top_p=top_p).token for p in range(200)} == expected


def test_top_p_counts_its_share_of_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # Of 0.4 and 0.3 the first is 57 %, which suffices; of all four it would be 40 %.
    assert {choose(logits, p, temperature=1.0, top_k=2, top_p=0.5).token for p in range(200)} == {0}


def test_min_p_is_a_fraction_of_the_likeliest() -> None:
    logits = np.log([0.5, 0.26, 0.14, 0.1])
    for min_p, expected in ((0.0, {0, 1, 2, 3}), (0.19, {0, 1, 2, 3}), (0.21, {0, 1, 2}), (0.3, {0, 1}), (1.0, {0})):
        assert {choose(logits, p, temperature=1.0, min_p=min_p).token for p in range(200)} == expected


def test_min_p_looks_at_probabilities_after_the_temperature() -> None:
    logits = np.log([0.5, 0.25, 0.25])
    assert {choose(logits, p, temperature=0.5, min_p=0.3).token for p in range(100)} == {0}
    assert {choose(logits, p, temperature=2.0, min_p=0.7).token for p in range(100)} == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_is_never_chosen(temperature: float) -> None:
    logits = [0.0, 1.0, 0.5, 1e9, 1e9]
    chosen = {choose(logits, p, tokenizer_size=3, temperature=temperature).token for p in range(300)}
    assert chosen == ({1} if temperature == 0 else {0, 1, 2})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_tokens_are_never_chosen(temperature: float) -> None:
    logits = [-np.inf, 1.0, -np.inf, 0.5, -np.inf]
    chosen = {choose(logits, p, temperature=temperature, top_k=4, top_p=0.999).token for p in range(300)}
    assert chosen == ({1} if temperature == 0 else {1, 3})


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [1.0, np.nan], [1.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_are_refused(bad: list[float], temperature: float) -> None:
    with pytest.raises(EngineError, match="position 7"):
        choose(bad, 7, temperature=temperature)


def test_nan_in_the_padding_does_not_matter() -> None:
    assert choose([0.0, 1.0, np.nan], tokenizer_size=2).token == 1


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-6])
def test_the_smallest_temperatures_choose_as_temperature_0(temperature: float) -> None:
    logits = np.random.default_rng(0).standard_normal(50) * 1e4
    assert choose(logits, 3, temperature=temperature).token == int(np.argmax(logits))


def test_the_largest_temperature_still_chooses_by_the_coin() -> None:
    chosen = [choose([0.0, 50.0, -50.0, 7.0], p, temperature=1e300).token for p in range(400)]
    assert set(np.bincount(chosen) // 60) == {1}


def test_same_logits_and_position_give_the_same_choice_whatever_was_chosen_before() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, 16)).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=0.8, seed=3), 16)
    forward = [sampler.choose(row, p) for p, row in enumerate(rows)]
    backward = [sampler.choose(rows[p], p) for p in reversed(range(30))][::-1]
    assert forward == backward


@given(
    st.integers(0, 10**6),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([0, 3, 8]),
    st.sampled_from([0.6, 0.95, 1.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_changes_smaller_than_the_margin_change_nothing(
    n: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rng = np.random.default_rng(n)
    logits = rng.standard_normal(12) * 2
    change = 1e-5
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": n}
    before = choose(logits, **params)
    after = choose(logits + rng.uniform(-change, change, 12), **params)
    # A change of the logits by c moves no cumulative probability by more than c / temperature.
    assert after.token == before.token or before.margin < 2 * change / temperature


def test_margin_is_the_distance_of_the_coin_from_the_next_token() -> None:
    uniform = coin(0, 0, 1)  # 0.50238
    choice = choose(np.log([0.5, 0.5]), 1, temperature=1.0)
    assert choice.token == 1
    assert choice.margin == pytest.approx(uniform - 0.5, abs=1e-7)


def test_margin_of_a_lone_candidate_is_not_small() -> None:
    assert choose([0.0, 1.0, 9.0], temperature=1.0, top_k=1).margin > 0.9
    assert choose([5.0], temperature=1.0).margin == 1.0


def test_a_close_cut_makes_a_small_margin_where_it_could_change_the_choice() -> None:
    uniform = coin(0, 0, 0)  # 0.0115
    assert uniform < 0.02
    # The first two are nearly equal, and only one is kept.
    assert choose([1.0, 1.0 - 1e-6, -5.0], temperature=1.0, top_k=1).margin < 1e-5
    # Here the cut is as close, but what it moves is too little to reach the coin.
    close = choose([5.0, 4.0, -9.0, -9.0 - 1e-6], 1, temperature=1.0, top_k=3)
    assert close.token == 0
    assert close.margin > 0.1


def test_a_close_cut_of_min_p_makes_a_small_margin_where_it_could_change_the_choice() -> None:
    uniform = coin(0, 0, 0)  # 0.0115
    assert uniform < 0.02
    # Three tokens are just likely enough to stay, or just not: they go together, and the choice with them.
    for share, chosen in ((0.300001, 0), (0.299999, 3)):
        choice = choose(np.log([share, share, share, 1.0]), temperature=1.0, min_p=0.3)
        assert choice.token == chosen
        assert choice.margin < 1e-5
    # Of the largest logits a lone one is kept, and others are as good as kept: the coin is of another token then.
    assert choose([1.0, 1.0, 1.0 + 1e-6], temperature=1.0, min_p=1.0).margin < 1e-5
    # Here the cut is as close, but the coin is far from all that it moves.
    far = choose(np.log([1.0, 0.010001, 0.5]), 1, temperature=1.0, min_p=0.01)
    assert far.token == 0
    assert far.margin > 0.1


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top-k"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.01}, "top-p"),
        ({"top_p": float("nan")}, "top-p"),
        ({"min_p": -0.01}, "min-p"),
        ({"min_p": 1.01}, "min-p"),
        ({"min_p": float("nan")}, "min-p"),
        ({"min_tokens": -1}, "min tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"choice_index": 2**64}, "choice index"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(params: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        SamplingParams(**params)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
