"""Options that depend on the text or on token ids: bias, penalties, min tokens, their order and their refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from starsd_edge.errors import EngineError, UsageError
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import Choice, Sampler, SamplingParams
from tests.support.reference_sampling import reference_processed, reference_token

NEAR_TIE = 1e-9
EOS = 2
SIZE = 8
PADDED = SIZE + 2
INFINITY = float("inf")

token_lists = st.lists(st.integers(0, SIZE - 1), max_size=12)
penalties = st.builds(
    Penalties,
    st.sampled_from([0.5, 1.0, 1.3, 3.0]),
    st.sampled_from([-1.0, 0.0, 0.7, 2.0]),
    st.sampled_from([-0.5, 0.0, 0.4, 2.0]),
)
biases = st.dictionaries(
    st.integers(0, SIZE - 1), st.sampled_from([-INFINITY, -100.0, -1.5, 0.0, 2.5]), max_size=4
).map(lambda pairs: tuple(pairs.items()))
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**64 - 1),
    penalties=penalties,
    logit_bias=biases,
    min_tokens=st.integers(0, 10),
)


def choose(
    sampling: SamplingParams, logits: Sequence[float], prompt: Sequence[int] = (), path: Sequence[int] = ()
) -> Choice:
    """The choice after the prompt and a path from it."""
    sampler = Sampler(sampling, len(logits), prompt, [EOS])
    return sampler.choose(np.array(logits, dtype=np.float32), len(prompt) + len(path), path)


@given(params, token_lists, token_lists, token_lists, st.integers(0, 10**6))
def test_all_options_together_agree_with_the_definition(
    sampling: SamplingParams, prompt: list[int], emitted: list[int], path: list[int], n: int
) -> None:
    row = (np.random.default_rng(n).standard_normal(PADDED) * 2).astype(np.float32)
    sampler = Sampler(sampling, SIZE, prompt, [EOS])
    for start in range(0, len(emitted), 3):  # as rounds bring them
        sampler.append(emitted[start : start + 3])
    answer = emitted + path
    known = row[:SIZE].tolist()
    assume(max(reference_processed(known, sampling, prompt, answer, [EOS])) > -INFINITY)
    choice = sampler.choose(row, len(prompt) + len(answer), path)
    assume(choice.margin > NEAR_TIE)
    assert choice.token == reference_token(known, sampling, prompt, answer, [EOS])


@given(params, token_lists, token_lists, st.integers(0, 10**6))
def test_a_token_in_the_path_counts_as_if_it_was_emitted(
    sampling: SamplingParams, prompt: list[int], answer: list[int], n: int
) -> None:
    row = np.random.default_rng(n).standard_normal(PADDED).astype(np.float32)
    choices = set()
    for split in range(len(answer) + 1):
        sampler = Sampler(sampling, SIZE, prompt, [EOS])
        sampler.append(answer[:split])
        try:
            choices.add(sampler.choose(row, len(prompt) + len(answer), answer[split:]))
        except UsageError as error:
            choices.add(str(error))
    assert len(choices) == 1


def test_a_choice_leaves_no_trace_of_its_path() -> None:
    sampler = Sampler(SamplingParams(penalties=Penalties(2.0, 1.0, 1.0)), 3, [0])
    row = np.array([1.0, 0.9, 0.8], dtype=np.float32)
    before = sampler.choose(row, 1)
    for path in ([1, 1], [2], [0, 1, 2]):
        sampler.choose(row, 1 + len(path), path)
    assert sampler.choose(row, 1) == before


def test_logits_are_left_as_they_were() -> None:
    row = np.array([1.0, 0.9, 0.8], dtype=np.float32)
    options = SamplingParams(penalties=Penalties(2.0, 1.0, 1.0), logit_bias=((0, 1.0),), min_tokens=3)
    Sampler(options, 3, [0], [EOS]).choose(row, 2, [1])
    assert row.tolist() == pytest.approx([1.0, 0.9, 0.8])


# One option at a time, on logits whose order it changes.


def test_repetition_divides_positive_logits_and_multiplies_negative_ones_of_prompt_and_answer() -> None:
    options = SamplingParams(penalties=Penalties(repetition=2.0))
    assert choose(options, [3.0, 2.0, 0.0], prompt=[0]).token == 1
    assert choose(options, [3.0, 2.0, 0.0], path=[0]).token == 1
    assert choose(options, [3.0, 1.4, 0.0], prompt=[0, 0, 0], path=[0]).token == 0  # once, however often
    assert choose(options, [-1.0, -1.5, -9.0], prompt=[0]).token == 1
    favoured = SamplingParams(penalties=Penalties(repetition=0.5))
    assert choose(favoured, [3.0, 2.0, 0.0], prompt=[1]).token == 1


def test_presence_counts_the_answer_once_and_not_the_prompt() -> None:
    options = SamplingParams(penalties=Penalties(presence=1.0))
    assert choose(options, [3.0, 2.5, 0.0], prompt=[0]).token == 0
    assert choose(options, [3.0, 2.5, 0.0], path=[0]).token == 1
    assert choose(options, [3.0, 1.5, 0.0], path=[0, 0, 0]).token == 0


def test_frequency_counts_every_time() -> None:
    options = SamplingParams(penalties=Penalties(frequency=1.0))
    assert choose(options, [3.0, 1.5, 0.0], prompt=[0, 0, 0]).token == 0
    assert [choose(options, [3.0, 1.5, 0.0], path=[0] * times).token for times in range(4)] == [0, 0, 1, 1]


def test_bias_comes_before_the_repetition_penalty() -> None:
    # (-1 + 2) / 2 = 0.5, where the other order gives -2 + 2 = 0.
    options = SamplingParams(penalties=Penalties(repetition=2.0), logit_bias=((0, 2.0),))
    assert choose(options, [-1.0, 0.4, -5.0], prompt=[0]).token == 0


def test_repetition_comes_before_what_is_subtracted() -> None:
    # 3 / 2 - 1 = 0.5, where the other order gives (3 - 1) / 2 = 1.
    options = SamplingParams(penalties=Penalties(repetition=2.0, presence=1.0))
    assert choose(options, [3.0, 0.7, -5.0], path=[0]).token == 1


def test_penalties_come_before_the_temperature_and_the_filters() -> None:
    options = SamplingParams(1.0, top_k=1, penalties=Penalties(presence=2.0))
    assert {choose(options, [3.0, 2.0, 0.0], path=[0] * n).token for n in range(1, 40)} == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_minus_infinity_forbids_a_token(temperature: float) -> None:
    options = SamplingParams(temperature, logit_bias=((0, -INFINITY),))
    assert 0 not in {choose(options, [50.0, 1.0, 0.0], prompt=[1] * n).token for n in range(100)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_puts_off_the_end_until_there_are_so_many(temperature: float) -> None:
    options = SamplingParams(temperature, min_tokens=3)
    row = [0.0, 1.0, 50.0]
    assert [choose(options, row, prompt=[0, 1], path=[1] * n).token == EOS for n in range(5)] == [False] * 3 + [
        True
    ] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_forbids_every_end_of_sequence(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature, min_tokens=1), 4, eos_ids=[0, 2, 9])
    row = np.array([9.0, 0.0, 9.0, 0.0], dtype=np.float32)
    assert sampler.choose(row, 0).token in {1, 3}
    assert sampler.choose(row, 1).token in {0, 2}


def test_margin_is_that_of_the_processed_logits() -> None:
    options = SamplingParams(penalties=Penalties(presence=1.0))
    assert choose(options, [3.0, 1.5, 0.0], path=[0]) == Choice(0, 0.5)
    only = SamplingParams(logit_bias=((1, -INFINITY), (2, -INFINITY)))
    assert choose(only, [3.0, 1.5, 0.0]) == Choice(0, math.inf)


# Refusals.


def test_a_path_that_does_not_fit_the_position_is_a_fault_of_the_loop() -> None:
    sampler = Sampler(SamplingParams(penalties=Penalties(presence=1.0)), 3, [0, 1])
    sampler.append([2])
    row = np.array([1.0, 0.9, 0.8], dtype=np.float32)
    for position, path in ((2, []), (4, []), (3, [1]), (5, [1])):
        with pytest.raises(ValueError, match=f"position {position} after 3"):
            sampler.choose(row, position, path)
    assert sampler.choose(row, 4, [1]).token == 0


def test_options_that_forbid_every_token_are_refused() -> None:
    everything = SamplingParams(logit_bias=((0, -INFINITY), (1, -INFINITY)), min_tokens=1)
    with pytest.raises(UsageError, match="forbid every token"):
        choose(everything, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_found_behind_any_option(bad: float) -> None:
    options = SamplingParams(logit_bias=((0, -INFINITY),), min_tokens=1, penalties=Penalties(2.0, 1.0, 1.0))
    for broken in range(3):
        with pytest.raises(EngineError, match="highest logit for position 0"):
            choose(options, [bad if token == broken else 1.0 for token in range(3)])


def test_tokens_that_do_not_exist_are_refused_or_not_counted() -> None:
    with pytest.raises(UsageError, match="token 8: this model's ids go from 0 to 7"):
        Sampler(SamplingParams(logit_bias=((SIZE, 1.0),)), SIZE)
    sampler = Sampler(SamplingParams(penalties=Penalties(2.0, 1.0, 1.0)), 3, [7, -1])
    sampler.append([9, -2])
    assert sampler.choose(np.array([1.0, 0.5, 0.4], dtype=np.float32), 6, [8, -3]) == Choice(0, 0.5)


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        (((-1, 1.0),), "not negative"),
        (((1, 100.5),), "logit bias of token 1"),
        (((1, -101.0),), "logit bias of token 1"),
        (((1, INFINITY),), "logit bias of token 1"),
        (((1, math.nan),), "logit bias of token 1"),
        (((1, 1.0), (2, 1.0), (1, 2.0)), "token 1 has two"),
    ],
)
def test_impossible_biases_are_refused_in_one_line(bias: tuple[tuple[int, float], ...], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        SamplingParams(logit_bias=bias)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"repetition": 0.0}, "repetition"),
        ({"repetition": -1.0}, "repetition"),
        ({"repetition": 101.0}, "repetition"),
        ({"repetition": math.nan}, "repetition"),
        ({"presence": 2.1}, "presence"),
        ({"presence": math.nan}, "presence"),
        ({"frequency": -2.1}, "frequency"),
        ({"frequency": math.inf}, "frequency"),
    ],
)
def test_impossible_penalties_are_refused_in_one_line(values: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Penalties(**values)
    assert "\n" not in str(caught.value)
