"""The exactness suite on a real model: what plain one-token steps say, and what is said with drafts.

The plain side is written from its definition and shares nothing with the decode loop but the engine and the sampler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.runtime.engine import Engine, causal_mask
from starsd_edge.speculation.penalties import Penalties
from starsd_edge.speculation.sampling import Choice, Sampler, SamplingParams
from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.rounds import Round
from starsd_edge.text.tokenizer import Tokenizer
from starsd_jetson.decoder import Request, decode
from starsd_jetson.drafting import DraftSource
from tests.support.draft_sources import ScriptedDrafts
from tests.support.trees import tree_of

LENGTH = 32
"""Tokens of an answer."""
ARGMAX_BOUNDS = {"float32": 1e-3, "float16": 5e-2}
"""By KV dtype: a greedy choice may differ where the two highest logits are nearer than this."""


@dataclass(frozen=True)
class Case:
    """A prompt, and how to sample after it."""

    prompt: str
    sampling: SamplingParams


CASES = [
    Case("one two three four, one two three five, one two three six, one two three", SamplingParams()),
    Case("def area(width, height):\n    return width * height\n\n\ndef volume(width, height,", SamplingParams()),
    Case("The hub drafts and the target verifies. The hub drafts and the", SamplingParams(0.7, seed=1)),
    Case("The capital of France is", SamplingParams(0.7, seed=2**64 - 1)),
    Case("Dear Sir or Madam, dear Sir or", SamplingParams(1.0, seed=3)),
    Case("Red, green, blue, red, green, yellow, red, green,", SamplingParams(1.0, top_k=40, seed=4)),
    Case("- salt\n- pepper\n- salt\n- vinegar\n- salt\n-", SamplingParams(0.7, top_p=0.9, seed=5)),
    Case("Once upon a time there was a", SamplingParams(1.0, top_k=50, top_p=0.95, seed=6)),
]
EXCEPTIONS = 2 / 2000
"""Most exceptions per token, of trees."""
OPTIONS = [
    Case("one two three four, one two three five, one two three", SamplingParams(penalties=Penalties(repetition=1.2))),
    Case(
        "Red, green, blue, red, green, yellow, red, green,",
        SamplingParams(0.7, seed=7, penalties=Penalties(presence=1.0)),
    ),
    Case("- salt\n- pepper\n- salt\n- vinegar\n- salt\n-", SamplingParams(penalties=Penalties(frequency=0.5))),
    Case("Dear Sir or Madam, dear Sir or", SamplingParams(1.0, seed=8, penalties=Penalties(0.9, -0.3, -0.1))),
    Case("The capital of France is", SamplingParams(1.0, seed=9, min_p=0.1)),
    Case("Once upon a time there was a", SamplingParams(0.8, seed=10, logit_bias=((28, -math.inf), (30, 4.0)))),
    Case(
        "The hub drafts and the target verifies. The hub drafts and the",
        SamplingParams(
            0.8, 50, 0.95, seed=11, min_p=0.02, penalties=Penalties(1.1, 0.3, 0.2), logit_bias=((28, -2.0),)
        ),
    ),
]
"""What looks at the text, at ids, or at the likeliest token. (No token ends an answer here: min tokens has no case.)"""
EVEN, ODD = CASES[::2], CASES[1::2]
"""Each half has every temperature; the even half repeats itself, so that n-grams are found."""


def margin_bound(sampling: SamplingParams, logit_error: float) -> float:
    """The margin below which a choice may differ when logits are off by `logit_error`.

    For argmax that is stated as such. Errors of e move a cumulative probability F by at most 2 F (1 - F) e / T, which
    is e / (2 T) where it is largest. A repetition penalty scales logits, and their errors with them.
    """
    logit_error *= max(sampling.penalties.repetition, 1 / sampling.penalties.repetition)
    return logit_error if sampling.temperature == 0.0 else logit_error / (2 * sampling.temperature)


@dataclass(frozen=True)
class Said:
    """An answer with drafts, and its rounds."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(each.accepted for each in self.rounds)


@dataclass(frozen=True)
class Bench:
    """A model, and what it says in plain one-token steps, computed once for each text."""

    engine: Engine
    tokenizer: Tokenizer
    length: int = LENGTH
    _known: dict[tuple[Case, tuple[int, ...] | None], list[Choice]] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, engine: Engine) -> Bench:
        """No token ends an answer here, so that all answers are of one length."""
        endless = msgspec.structs.replace(bundle.manifest.text, eos_ids=[])
        return cls(engine, Tokenizer.load(bundle.path, endless))

    def prompt(self, case: Case) -> list[int]:
        """Its tokens."""
        return self.tokenizer.encode(case.prompt)

    def choices(self, case: Case) -> list[Choice]:
        """What the model chooses by itself."""
        return self._choices(case, None)

    def plain(self, case: Case) -> list[int]:
        """What the model says by itself."""
        return [choice.token for choice in self.choices(case)]

    def replay(self, case: Case, emitted: Sequence[int]) -> list[Choice]:
        """What the model chooses by itself after each beginning of an answer, with the same coins."""
        return self._choices(case, None if list(emitted) == self.plain(case) else tuple(emitted))

    def say(self, case: Case, source: DraftSource, shape: DraftShape) -> Said:
        """The answer by the decode loop."""
        rounds: list[Round] = []
        prompt = self.prompt(case)
        wanted = Request(prompt, case.sampling, max_tokens=self.length, context=len(prompt) + self.length, shape=shape)
        answer = decode(self.engine, self.tokenizer, wanted, source, clock=time.monotonic, on_round=rounds.append)
        assert len(answer.token_ids) == self.length
        return Said(answer.token_ids, tuple(rounds))

    def _choices(self, case: Case, forced: tuple[int, ...] | None) -> list[Choice]:
        if (case, forced) not in self._known:
            self._known[case, forced] = self._one_by_one(case, forced)
        return self._known[case, forced]

    def _one_by_one(self, case: Case, forced: tuple[int, ...] | None) -> list[Choice]:
        """The choices along the forced text, or along the choices themselves."""
        new = self.prompt(case)
        sampler = Sampler(case.sampling, self.tokenizer.size, new)
        seq = self.engine.open(len(new) + self.length)
        choices: list[Choice] = []
        while len(choices) < self.length:
            positions = np.arange(seq.length, seq.length + len(new))
            step = self.engine.forward(seq, np.asarray(new), positions, causal_mask(len(new)), [len(new) - 1])
            self.engine.commit(seq, range(len(new)))
            choices.append(sampler.choose(step.logits[0], seq.length))
            new = [choices[-1].token if forced is None else forced[len(choices) - 1]]
            sampler.append(new)
        return choices


@dataclass(frozen=True)
class Mismatch:
    """A token that plain one-token steps do not choose."""

    case: Case
    index: int
    token: int
    plain_token: int
    margin: float
    bound: float


def mismatches(bench: Bench, case: Case, said: Said) -> list[Mismatch]:
    """Where an answer is not what one-token steps say after the same beginning."""
    bound = margin_bound(case.sampling, ARGMAX_BOUNDS[bench.engine.spec.kv_dtype])
    choices = bench.replay(case, said.tokens)
    return [
        Mismatch(case, index, token, choice.token, choice.margin, bound)
        for index, (token, choice) in enumerate(zip(said.tokens, choices, strict=True))
        if token != choice.token
    ]


Paths = Callable[[np.random.Generator, list[int], int], list[list[int]]]
"""Makes the paths of a tree: (random numbers, the true future, size of the vocabulary) -> paths."""


def informed(bench: Bench, case: Case, paths: Paths, seed: int) -> ScriptedDrafts:
    """Trees made by one who knows the future."""
    rng = np.random.default_rng(seed)
    text = bench.prompt(case) + bench.plain(case)
    vocab_size = bench.engine.spec.vocab_size
    return ScriptedDrafts(
        lambda so_far, shape: tree_of(paths(rng, text[len(so_far) :], vocab_size)), bench.engine.spec.feature_width
    )


def right_then_wrong(rng: np.random.Generator, future: list[int], vocab_size: int) -> list[list[int]]:
    """One path that is right for some tokens and then wrong: rounds end at any depth of chains of any length."""
    right = future[: int(rng.integers(0, 9))]
    return [[*right, *rng.integers(0, vocab_size, size=rng.integers(1, 5)).tolist()]]


def right_among_wrong(rng: np.random.Generator, future: list[int], vocab_size: int) -> list[list[int]]:
    """The right path behind wrong children at every level: accepted rows with holes between them."""
    right = future[: int(rng.integers(1, 5))]
    wrong = rng.integers(0, vocab_size, size=(len(right), 2)).tolist()
    return [*([*right[:level], *pair] for level, pair in enumerate(wrong)), right]


def right_before_wrong(rng: np.random.Generator, future: list[int], vocab_size: int) -> list[list[int]]:
    """The same with the right children first: what is accepted is a prefix of the rows."""
    *wrong, right = right_among_wrong(rng, future, vocab_size)
    return [right, *wrong]


def noise(rng: np.random.Generator, future: list[int], vocab_size: int) -> list[list[int]]:
    """Random tokens before the right ones, ids of the padding and the last token again among them."""
    first = [*rng.integers(0, vocab_size, size=rng.integers(0, 3)).tolist(), vocab_size - 1]
    return [[token, *future[: int(rng.integers(0, 4))]] for token in first]
