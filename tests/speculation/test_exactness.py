"""The exactness suite, part (c), for `verify`: whatever tree is verified, the text is that of one-token steps.

The engine's logits are a pure function of the prefix, so there is no exception to allow for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from starsd_edge.runtime.engine import causal_mask
from starsd_edge.speculation.ngram import NgramIndex
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import Sampler, SamplingParams
from starsd_edge.speculation.stops import Stopper, StopRules
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.speculation.verify import Verdict, verify
from tests.support.prefix_engine import PrefixEngine, PrefixSequence
from tests.support.reference_sampling import reference_token
from tests.support.trees import random_tree, tree_of

PROMPT = [3, 1, 4, 1, 5]
LENGTH = 60
"""Tokens generated after the prompt."""
EOS = 23
"""Likely everywhere, so that min tokens has something to put off. Texts go on after it."""

Drafter = Callable[[list[int]], DraftTree]
"""From all tokens so far, the root last, to a tree under it."""


def engine() -> PrefixEngine:
    # The last two ids are padding with the highest logits: drafts may hold them, texts may not.
    room = len(PROMPT) + LENGTH
    return PrefixEngine(5, vocab_size=26, padding=2, max_tree=13, max_context=room, eos_id=EOS, eos_bonus=2.0)


@dataclass
class Run:
    """A text, and what it took."""

    tokens: list[int]
    rounds: int = 0


def prefill(model: PrefixEngine, sampler: Sampler) -> tuple[PrefixSequence, list[int]]:
    seq = model.open(model.spec.max_context)
    positions = np.arange(len(PROMPT))
    step = model.forward(seq, np.array(PROMPT), positions, causal_mask(len(PROMPT)), [len(PROMPT) - 1])
    model.commit(seq, range(len(PROMPT)))
    first = sampler.choose(step.logits[0], len(PROMPT)).token
    sampler.append([first])
    return seq, [*PROMPT, first]


def generate(params: SamplingParams, drafter: Drafter | None = None, rule: Callable[..., Verdict] = verify) -> Run:
    """One-token steps without a drafter, else rounds of verification."""
    model = engine()
    sampler = Sampler(params, model.tokenizer_size, PROMPT, [EOS])
    seq, tokens = prefill(model, sampler)
    run = Run(tokens)
    while len(tokens) < model.spec.max_context:
        base_len = seq.length
        tree = drafter(tokens) if drafter else DraftTree.empty()
        tree = tree.clip(model.spec.max_tree - 1, model.spec.max_context - base_len - 1)
        step = model.forward(
            seq, tree.verify_tokens(tokens[-1]), tree.verify_positions(base_len), tree.verify_mask(), None
        )
        verdict = rule(tree, step.logits, base_len, sampler.choose)
        model.commit(seq, verdict.rows)
        tokens.extend(verdict.tokens)
        sampler.append(verdict.tokens)
        run.rounds += 1
    del tokens[model.spec.max_context :]
    return run


def by_definition(params: SamplingParams) -> list[int]:
    """The text by its definition, which shares nothing with `Sampler` but the coins."""
    model = engine()
    tokens = list(PROMPT)
    while len(tokens) < model.spec.max_context:
        logits = model.prefix_logits(tokens)[: model.tokenizer_size].tolist()
        tokens.append(reference_token(logits, params, PROMPT, tokens[len(PROMPT) :], [EOS]))
    return tokens


def oracle(truth: list[int], depth: int = 5) -> Drafter:
    return lambda tokens: DraftTree.chain(truth[len(tokens) : len(tokens) + depth])


def oracle_among_siblings(truth: list[int], rng: np.random.Generator) -> Drafter:
    """The true path as the unlikeliest child of every node, between wrong ones that share its beginning."""

    def draft(tokens: list[int]) -> DraftTree:
        path = truth[len(tokens) : len(tokens) + 4]
        decoys = [[*path[:depth], int(rng.integers(26)), int(rng.integers(26))] for depth in range(len(path))]
        return tree_of([*decoys, path])

    return draft


def wrong(truth: list[int]) -> Drafter:
    """Never the next token, otherwise the truth."""

    def draft(tokens: list[int]) -> DraftTree:
        path = truth[len(tokens) : len(tokens) + 5]
        return DraftTree.chain([(token + 1) % 26 for token in path[:1]] + path[1:])

    return draft


def right_then_wrong(truth: list[int], depth: int) -> Drafter:
    """Right up to a depth, so that the round ends there."""

    def draft(tokens: list[int]) -> DraftTree:
        path = truth[len(tokens) : len(tokens) + 6]
        return DraftTree.chain(path[:depth] + [(token + 3) % 26 for token in path[depth:]])

    return draft


def random_trees(rng: np.random.Generator, branching: int) -> Drafter:
    return lambda tokens: random_tree(rng, DraftShape(11, 4, branching), 26)


def hostile(rng: np.random.Generator) -> Drafter:
    """Padding, the prompt, one token for ever, whole vocabularies: all that a malicious hub can send."""

    def draft(tokens: list[int]) -> DraftTree:
        trees = [
            DraftTree.chain([25] * 11),
            DraftTree.chain([24, 25, 24]),
            DraftTree.chain(PROMPT * 2),
            DraftTree.chain([tokens[-1]] * 11),
            tree_of([[token] for token in range(26)]),
            tree_of([[token, token, 25] for token in rng.permutation(24)]),
        ]
        return trees[int(rng.integers(len(trees)))]

    return draft


def stale(inner: Drafter, *, lag: int, rebase: bool) -> Drafter:
    """Trees drafted for the text as it was some tokens ago; verified as they are, or rebased as a late draft is."""

    def draft(tokens: list[int]) -> DraftTree:
        known = max(1, len(tokens) - lag)
        tree = inner(tokens[:known])
        return tree.rebase(tokens[known:]) if rebase else tree

    return draft


def ngram(branching: int) -> Drafter:
    index = NgramIndex(max_order=3, min_order=1)

    def draft(tokens: list[int]) -> DraftTree:
        index.append(tokens[len(index) :])
        return index.draft(DraftShape(11, 5, branching))

    return draft


def drafters(truth: list[int], seed: int) -> dict[str, Drafter]:
    rng = np.random.default_rng(seed)
    return {
        "nothing": lambda tokens: DraftTree.empty(),
        "oracle chain": oracle(truth),
        "oracle of full size": oracle(truth, depth=11),
        "oracle among siblings": oracle_among_siblings(truth, rng),
        "right then wrong": right_then_wrong(truth, depth=2),
        "wrong": wrong(truth),
        "random chain": random_trees(rng, 1),
        "random tree": random_trees(rng, 4),
        "hostile": hostile(rng),
        "stale": stale(oracle(truth, depth=8), lag=2, rebase=False),
        "late, rebased": stale(oracle(truth, depth=8), lag=3, rebase=True),
        "late siblings, rebased": stale(oracle_among_siblings(truth, rng), lag=1, rebase=True),
        "n-gram chain": ngram(1),
        "n-gram tree": ngram(3),
    }


PLAIN = [
    SamplingParams(),
    SamplingParams(0.7),
    SamplingParams(1.0),
    SamplingParams(1.0, top_k=4),
    SamplingParams(0.7, top_p=0.8),
    SamplingParams(1.0, top_k=10, top_p=0.9),
]
OPTIONS: list[dict[str, object]] = [
    {"min_p": 0.3},
    {"penalties": Penalties(repetition=1.8)},
    {"penalties": Penalties(repetition=0.7)},
    {"penalties": Penalties(presence=1.5)},
    {"penalties": Penalties(frequency=1.0)},
    {"penalties": Penalties(frequency=-1.0)},
    {"logit_bias": ((3, 2.5), (9, -100.0), (4, -float("inf")))},
    {"min_tokens": 25, "logit_bias": ((EOS, 4.0),)},
    {"penalties": Penalties(1.4, 0.5, 0.3), "logit_bias": ((3, 1.5), (4, -2.0)), "min_tokens": 25, "min_p": 0.05},
]
EXTENDED = [
    SamplingParams(temperature, **options)  # type: ignore[arg-type]
    for options in OPTIONS
    for temperature in (0.0, 1.0)
    if temperature or "min_p" not in options or len(options) > 1
] + [
    SamplingParams(0.7, 10, 0.95, min_p=0.1),
    SamplingParams(0.7, 12, 0.9, penalties=Penalties(1.2, -0.4, 0.6)),
    SamplingParams(
        1.5, 20, 0.95, min_p=0.08, penalties=Penalties(1.1, 0.2, 0.2), logit_bias=((1, 3.0),), min_tokens=40
    ),
]
SAMPLINGS = PLAIN + EXTENDED


def named(params: SamplingParams) -> str:
    """What differs from the default."""
    return str({name: value for name, value in vars(params).items() if value != getattr(SamplingParams(), name)})


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=named)
def test_the_text_does_not_depend_on_the_drafts(sampling: SamplingParams, seed: int) -> None:
    params = replace(sampling, seed=seed)
    plain = generate(params)
    assert plain.tokens == by_definition(params)
    assert len(plain.tokens) == len(PROMPT) + LENGTH
    assert max(plain.tokens) < 24
    for name, drafter in drafters(plain.tokens, seed % 1000).items():
        assert generate(params, drafter).tokens == plain.tokens, name


@pytest.mark.parametrize("sampling", EXTENDED, ids=named)
def test_every_option_changes_the_text(sampling: SamplingParams) -> None:
    """Otherwise nothing would have been shown of it."""
    for option in ("min_p", "penalties", "logit_bias", "min_tokens"):
        default = getattr(SamplingParams(), option)
        if getattr(sampling, option) != default and not (option == "min_p" and sampling.temperature == 0.0):
            without = replace(sampling, **{option: default})
            texts = [generate(replace(p, seed=s)).tokens for p in (sampling, without) for s in (0, 1)]
            assert texts[:2] != texts[2:], option


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=named)
def test_what_the_target_would_say_is_accepted_however_it_samples(sampling: SamplingParams) -> None:
    params = replace(sampling, seed=4)
    plain = generate(params)
    drafted = generate(params, oracle(plain.tokens))
    among = generate(params, oracle_among_siblings(plain.tokens, np.random.default_rng(0)))
    # Every round but the last emits all 5 (or 4) drafted tokens and the bonus token.
    assert drafted.rounds == -(-(LENGTH - 1) // 6)
    assert among.rounds == -(-(LENGTH - 1) // 5)
    assert generate(params, wrong(plain.tokens)).rounds == plain.rounds == LENGTH - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_counts_tokens_and_not_rounds(temperature: float) -> None:
    """The end of sequence comes as soon as it may, in the middle of an accepted block as between blocks."""
    for min_tokens in range(12, 24):
        params = SamplingParams(temperature, seed=1, min_tokens=min_tokens, logit_bias=((EOS, 20.0),))
        plain = generate(params).tokens
        assert plain.index(EOS) == len(PROMPT) + min_tokens
        for depth in (1, 4, 11):
            assert generate(params, oracle(plain, depth)).tokens == plain


@pytest.mark.parametrize("max_tokens", [7, 50])
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_ends_alike_with_every_drafter(seed: int, max_tokens: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed)
    plain = generate(params).tokens
    eos = plain[len(PROMPT) + 20]

    def answer(tokens: list[int]) -> tuple[list[int], str | None]:
        stopper = Stopper(StopRules(frozenset({eos}), max_tokens, LENGTH))
        for end, token in enumerate(tokens):
            if reason := stopper.push(token):
                return tokens[: end + (reason == "length")], reason
        return tokens, None

    expected = answer(plain[len(PROMPT) :])
    assert expected[1] is not None
    for name, drafter in drafters(plain, seed).items():
        assert answer(generate(params, drafter).tokens[len(PROMPT) :]) == expected, name


def test_seeds_and_choices_give_different_texts_and_repeat_themselves() -> None:
    texts = {
        (seed, choice): tuple(generate(SamplingParams(1.0, seed=seed, choice_index=choice)).tokens)
        for seed in (1, 2)
        for choice in (0, 1)
    }
    assert len(set(texts.values())) == 4
    assert texts[2, 1] == tuple(generate(SamplingParams(1.0, seed=2, choice_index=1), ngram(3)).tokens)


def accept_the_likeliest(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: takes the first child for granted."""
    verdict = verify(tree, logits, base_len, choose)
    if len(tree) and verdict.accepted == 0:
        bonus = choose(logits[1], base_len + 2)
        return Verdict([0, 1], [int(tree.tokens[0]), bonus.token], [1.0, bonus.margin])
    return verdict


def toss_by_node(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: the coin of a position counted by nodes, not by depth."""
    rows = iter(range(1, len(logits) + 1))
    return verify(tree, logits, base_len, lambda row, position, path: choose(row, base_len + 2 * next(rows) - 1))


def sibling_logits(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: reads the next row where it should read the accepted node's."""
    return verify(tree, np.vstack((logits[:1], np.roll(logits[1:], 1, axis=0))), base_len, choose)


@pytest.mark.parametrize("rule", [accept_the_likeliest, toss_by_node, sibling_logits])
def test_the_suite_catches_a_wrong_rule(rule: Callable[..., Verdict]) -> None:
    params = SamplingParams(temperature=1.0, seed=1)
    truth = generate(params).tokens
    different = {name for name, d in drafters(truth, 1).items() if generate(params, d, rule).tokens != truth}
    assert len(different) >= 5


def penalties_per_round(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: counts as they were at the beginning of the round. Padding is never chosen, so counting it is nothing."""
    return verify(tree, logits, base_len, lambda row, position, path: choose(row, position, [25] * len(path)))


def penalties_per_row(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: takes the rows of the pass before a node for its ancestors."""
    rows = tree.tokens.tolist()
    return verify(tree, logits, base_len, lambda row, position, path: choose(row, position, rows[: len(path)]))


def penalties_of_siblings(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
    """Wrong: every token of the tree is present, accepted or not."""
    logits = logits.copy()
    logits[:, tree.tokens] -= 1.0
    return verify(tree, logits, base_len, choose)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [penalties_per_round, penalties_per_row, penalties_of_siblings])
def test_the_suite_catches_a_wrong_penalty_rule(rule: Callable[..., Verdict], temperature: float) -> None:
    for penalties in (Penalties(repetition=1.8), Penalties(presence=1.0), Penalties(frequency=1.0)):
        params = SamplingParams(temperature, seed=1, penalties=penalties)
        truth = generate(params).tokens
        different = {name for name, d in drafters(truth, 1).items() if generate(params, d, rule).tokens != truth}
        assert different, penalties


def test_a_wrong_rule_for_min_tokens_is_caught() -> None:
    def per_step(tree, logits, base_len, choose):  # type: ignore[no-untyped-def]
        """Wrong: what holds for the first token of a round holds for all of them."""
        positions = iter([base_len + 1] * len(logits))
        return verify(tree, logits, base_len, lambda row, position, path: choose(row, next(positions), path))

    params = SamplingParams(min_tokens=20, logit_bias=((EOS, 20.0),))
    truth = generate(params).tokens
    different = {name for name, d in drafters(truth, 1).items() if generate(params, d, per_step).tokens != truth}
    assert len(different) >= 3, different
