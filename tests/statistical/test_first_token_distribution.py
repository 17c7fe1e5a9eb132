"""Is it lossless when sampling? Frequencies of verified tokens against the target's own probabilities.

100,000 verifications for each way of sampling, half of them over a wide tree and half over a chain, both of a bad
drafter. Chi-square at the level 1e-4, seeds fixed. Its power is computed in the test: were two parts in a hundred of
all probability moved from the likeliest token to the next, 50,000 draws would show it with a probability above 0.999.
Three wrong acceptance rules are shown to be caught. With penalties, bias and min tokens the distribution is that of the
logits processed for each token's own path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import Choice, Sampler, SamplingParams
from starsd_edge.speculation.tree import DraftTree
from starsd_edge.speculation.verify import verify
from tests.support.reference_sampling import reference_probabilities, reference_processed
from tests.support.trees import tree_of

DRAWS = 100_000
LEVEL = 1e-4
MOVED = 0.02
POSITIONS = 1000
"""Draws per seed: coins must be fair along a text and across texts."""

VOCAB = 12
SPREAD = np.linspace(0, 2.2, VOCAB)
LOGITS = SPREAD[[5, 10, 0, 8, 11, 2, 7, 3, 9, 1, 6, 4]].astype(np.float32)
NEXT_LOGITS = SPREAD[[3, 6, 11, 1, 9, 4, 0, 10, 2, 8, 5, 7]].astype(np.float32)
BY_LIKELIHOOD = np.argsort(-LOGITS).tolist()

# The likeliest token stands last and deep, the unlikeliest first: nothing about these trees helps.
WIDE = tree_of([*([token] for token in BY_LIKELIHOOD[:2:-1]), [BY_LIKELIHOOD[1], 0], [BY_LIKELIHOOD[0], 0]])
NARROW = DraftTree.chain([BY_LIKELIHOOD[3], 0, 0])

SAMPLINGS = [
    {"temperature": 0.5},
    {"temperature": 1.0},
    {"temperature": 0.5, "top_k": 5},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.5, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.3},
]


def p_value(tokens: Sequence[int] | npt.NDArray[np.int64], probabilities: Sequence[float]) -> float:
    """Of the chi-square test; 0 when a token came that has no probability at all."""
    counts = np.bincount(tokens, minlength=VOCAB)
    expected = np.array(probabilities) * len(tokens)
    if counts[expected == 0].any():
        return 0.0
    assert expected[expected > 0].min() > 5
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


def power(probabilities: Sequence[float], draws: int) -> float:
    """Probability to reject at `LEVEL` when `MOVED` of the probability went from the likeliest token to the next."""
    ranked = sorted((p for p in probabilities if p > 0), reverse=True)
    freedom = len(ranked) - 1
    noncentrality = draws * MOVED**2 * (1 / ranked[0] + 1 / ranked[1])
    return float(stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, noncentrality))


def verified_tokens(sampling: dict[str, float], draws: int = DRAWS) -> dict[str, list[list[int]]]:
    """What `verify` emitted for each tree, draw by draw."""
    logits = {
        name: np.stack([LOGITS, *(NEXT_LOGITS for _ in range(len(tree)))])
        for name, tree in (("wide", WIDE), ("narrow", NARROW))
    }
    emitted: dict[str, list[list[int]]] = {"wide": [], "narrow": []}
    for seed in range(draws // POSITIONS):
        sampler = Sampler(SamplingParams(seed=seed, **sampling), VOCAB)  # type: ignore[arg-type]
        for base_len in range(0, POSITIONS, 2):
            emitted["wide"].append(verify(WIDE, logits["wide"], base_len, sampler.choose).tokens)
            emitted["narrow"].append(verify(NARROW, logits["narrow"], base_len + 1, sampler.choose).tokens)
    return emitted


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_verified_tokens_follow_the_targets_distribution(sampling: dict[str, float]) -> None:
    first = reference_probabilities(LOGITS.tolist(), **sampling)  # type: ignore[arg-type]
    second = reference_probabilities(NEXT_LOGITS.tolist(), **sampling)  # type: ignore[arg-type]
    emitted = verified_tokens(sampling)
    for name, answers in emitted.items():
        assert power(first, len(answers)) > 0.999, name
        assert p_value([tokens[0] for tokens in answers], first) > LEVEL, name
        # Below an accepted node too, where only part of the draws arrive.
        followers = [tokens[1] for tokens in answers if len(tokens) > 1]
        if len(followers) * min(p for p in second if p > 0) > 5:
            assert p_value(followers, second) > LEVEL, name
    together = [tokens[0] for answers in emitted.values() for tokens in answers]
    assert len(together) == DRAWS
    assert p_value(together, first) > LEVEL


PROMPT = [8, 4, 4]
ANSWER = [1, 3, 3, 9]
PENALISED = {
    "repetition": SamplingParams(1.0, penalties=Penalties(repetition=2.0)),
    "presence": SamplingParams(1.0, penalties=Penalties(presence=1.0)),
    "frequency": SamplingParams(1.0, penalties=Penalties(frequency=1.0)),
    "bias": SamplingParams(1.0, logit_bias=((1, -1.5), (2, 1.0), (4, -float("inf")))),
    "min tokens": SamplingParams(1.0, min_tokens=6),
    "all": SamplingParams(0.8, 9, 0.95, min_p=0.05, penalties=Penalties(1.3, 0.4, 0.3), logit_bias=((2, 1.0),)),
}
EOS_IDS = [4, 9]


def after_a_text(
    params: SamplingParams, draws: int, wrong: Callable[[Sequence[int]], Sequence[int]] = lambda path: path
) -> list[list[int]]:
    """What `verify` emits for the wide tree after prompt and answer, for one seed after another."""
    logits = np.stack([LOGITS, *(NEXT_LOGITS for _ in range(len(WIDE)))])
    emitted = []
    for seed in range(draws):
        sampler = Sampler(replace(params, seed=seed), VOCAB, PROMPT, EOS_IDS)
        sampler.append(ANSWER)
        choose = partial(_choose, sampler, wrong)
        emitted.append(verify(WIDE, logits, len(PROMPT) + len(ANSWER) - 1, choose).tokens)
    return emitted


def _choose(
    sampler: Sampler,
    wrong: Callable[[Sequence[int]], Sequence[int]],
    logits: npt.NDArray[np.float32],
    position: int,
    path: Sequence[int],
) -> Choice:
    return sampler.choose(logits, position, wrong(path))


def p_values(params: SamplingParams, emitted: Sequence[Sequence[int]]) -> dict[int | None, float]:
    """Of the first tokens (None), and of those that follow each first token, where there are enough."""

    def expected(logits: npt.NDArray[np.float32], answer: Sequence[int]) -> list[float]:
        processed = reference_processed(logits.tolist(), params, PROMPT, answer, EOS_IDS)
        return reference_probabilities(processed, params.temperature, params.top_k, params.top_p, params.min_p)

    values: dict[int | None, float] = {None: p_value([tokens[0] for tokens in emitted], expected(LOGITS, ANSWER))}
    for first in range(VOCAB):
        followers = [tokens[1] for tokens in emitted if tokens[0] == first and len(tokens) > 1]
        probabilities = expected(NEXT_LOGITS, [*ANSWER, first])
        if len(followers) * min(p for p in probabilities if p > 0) > 5:
            values[first] = p_value(followers, probabilities)
    return values


@pytest.mark.parametrize("option", PENALISED)
def test_verified_tokens_follow_the_processed_distribution_of_their_own_path(option: str) -> None:
    values = p_values(PENALISED[option], after_a_text(PENALISED[option], 20_000))
    assert len(values) >= 4
    assert all(value > LEVEL for value in values.values()), values


@pytest.mark.parametrize("option", ["repetition", "presence", "frequency"])
def test_penalties_that_forget_the_path_are_caught(option: str) -> None:
    emitted = after_a_text(PENALISED[option], 20_000, wrong=lambda path: [VOCAB] * len(path))
    values = p_values(PENALISED[option], emitted)
    assert sum(value < LEVEL for value in values.values()) >= 3


def test_the_trees_are_used_at_all() -> None:
    emitted = verified_tokens({"temperature": 1.0, "top_k": 3}, draws=5000)
    accepted = {name: np.mean([len(tokens) > 1 for tokens in answers]) for name, answers in emitted.items()}
    assert accepted["wide"] > 0.6
    assert accepted["narrow"] < 0.2


Rule = Callable[[npt.NDArray[np.float64], list[int], np.random.Generator], int]


def without_a_residual(p: npt.NDArray[np.float64], children: list[int], rng: np.random.Generator) -> int:
    """Wrong: after rejecting the drafted tokens it draws from the whole distribution again."""
    for child in children:
        if rng.random() < p[child]:
            return child
    return int(rng.choice(VOCAB, p=p))


def good_enough(p: npt.NDArray[np.float64], children: list[int], rng: np.random.Generator) -> int:
    """Wrong: takes a drafted token that is likely enough."""
    likely = [child for child in children if p[child] > 0.1]
    return likely[0] if likely else int(rng.choice(VOCAB, p=p))


def one_coin_for_all(p: npt.NDArray[np.float64], children: list[int], rng: np.random.Generator) -> int:
    """Wrong: the coin that rejected a drafted token also draws the next one."""
    coin = rng.random()
    if coin < p[children[0]]:
        return children[0]
    return int(np.searchsorted(np.cumsum(p), coin, side="right"))


def sample_and_match(p: npt.NDArray[np.float64], children: list[int], rng: np.random.Generator) -> int:
    """Right, as the control of this test's test."""
    return int(rng.choice(VOCAB, p=p))


@pytest.mark.parametrize(
    ("rule", "right"),
    [(without_a_residual, False), (good_enough, False), (one_coin_for_all, False), (sample_and_match, True)],
)
def test_wrong_rules_are_caught(rule: Rule, right: bool) -> None:
    p = np.array(reference_probabilities(LOGITS.tolist(), 1.0))
    children = BY_LIKELIHOOD[1:4]
    rng = np.random.default_rng(0)
    tokens = [rule(p, children, rng) for _ in range(20_000)]
    assert (p_value(tokens, p.tolist()) > LEVEL) == right


def test_a_coin_shared_by_two_positions_is_caught() -> None:
    """Each token alone would follow its distribution; only the pairs give a reused coin away."""
    p = np.array(reference_probabilities(LOGITS.tolist(), 1.0))
    joint = np.outer(p, p).ravel()

    def pairs(second_position: Callable[[int], int]) -> npt.NDArray[np.int64]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=11), VOCAB)

        def choose(position: int) -> int:
            return sampler.choose(LOGITS, position).token

        return np.array([choose(n) * VOCAB + choose(second_position(n)) for n in range(1, 20_000, 2)])

    def statistic(drawn: npt.NDArray[np.int64]) -> float:
        large = joint * len(drawn) > 5
        counts = np.bincount(drawn, minlength=VOCAB**2)
        observed = np.append(counts[large], counts[~large].sum())
        expected = np.append(joint[large], joint[~large].sum()) * len(drawn)
        return float(stats.chisquare(observed, expected).pvalue)

    assert statistic(pairs(lambda n: n + 1)) > LEVEL
    assert statistic(pairs(lambda n: n)) < 1e-12
