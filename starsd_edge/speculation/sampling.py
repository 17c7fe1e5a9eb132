"""How the target chooses its next token: sample-and-match with a keyed coin.

The choice at a position depends on the text before it, the logits, the parameters and the coin of (seed, position)
alone, never on a draft. So the text with speculation is the text without it, token for token, whatever the drafter or
the hub does.

The coin is a keyed random number in [0, 1). A counter-based generator needs no state to be carried, rolled back or
agreed upon: the coin of a position is the same number after a rejected draft, a reconnect or a restart.

Order of processing: logit bias, repetition penalty, presence and frequency penalties, constraint, min tokens,
temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random import Philox

from starsd_edge.errors import EngineError, UsageError
from starsd_edge.speculation.filters import TokenFilter, keep_min_p, keep_top_k, keep_top_p, scaled
from starsd_edge.speculation.penalties import Penalties, TextPenalties

_LARGEST_BIAS = 100.0
"""Largest absolute logit bias, as HTTP APIs allow; beyond it a token is always or never chosen anyway."""

_NO_BOUNDARY = 1.0
"""Margin of a choice that no small change of the probabilities can alter: there is only one candidate."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    Attributes:
        temperature: 0 chooses the highest processed logit, the lowest id among equals.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
        seed: 64-bit key of the coins.
        choice_index: second half of the key, one per answer when a request asks for several.
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
        penalties: for tokens that the text already holds.
        logit_bias: pairs of a token id and what is added to its logit; minus infinity forbids the token.
        min_tokens: number of first tokens of the answer that are never an end-of-sequence token.

    Raises:
        UsageError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice_index: int = 0
    min_p: float = 0.0
    penalties: Penalties = field(default_factory=Penalties)
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(
                f"temperature must be 0 (always the likeliest token) or a positive number, not {self.temperature}"
            )
        if self.top_k < 0:
            raise UsageError(f"top-k must be 0 (no limit) or a number of tokens, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top-p must lie above 0 and be at most 1 (no limit), not {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"min-p must lie between 0 (no limit) and 1, not {self.min_p}")
        if self.min_tokens < 0:
            raise UsageError(f"min tokens must be 0 (none) or a number of tokens, not {self.min_tokens}")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"a seed is an integer from 0 to {2**64 - 1}, not {self.seed}")
        if not 0 <= self.choice_index < 2**64:
            raise UsageError(f"a choice index is an integer from 0 to {2**64 - 1}, not {self.choice_index}")
        self._check_bias()

    def check_tokens(self, tokenizer_size: int) -> None:
        """Raises UsageError if a logit bias names a token that does not exist."""
        for token, _ in self.logit_bias:
            if token >= tokenizer_size:
                raise UsageError(f"logit bias for token {token}: this model's ids go from 0 to {tokenizer_size - 1}")

    def _check_bias(self) -> None:
        for token, bias in self.logit_bias:
            if token < 0:
                raise UsageError(f"logit bias for token {token}: a token id is not negative")
            if not (abs(bias) <= _LARGEST_BIAS or bias == -float("inf")):
                raise UsageError(
                    f"the logit bias of token {token} must lie between -{_LARGEST_BIAS:.0f} and {_LARGEST_BIAS:.0f}, "
                    f"or be -inf to forbid it, not {bias}"
                )
        ids = [token for token, _ in self.logit_bias]
        if len(set(ids)) < len(ids):
            twice = next(token for token in ids if ids.count(token) > 1)
            raise UsageError(f"token {twice} has two logit biases: give one")


@dataclass(frozen=True)
class Choice:
    """A chosen token and how close the decision was.

    Attributes:
        token: the id.
        margin: for temperature 0 the gap between the two highest processed logits; else the distance in probability
            from the coin to the nearest boundary of the cumulative distribution, or of a filter cut (one that could
            move the coin into another token). Small margins are where other arithmetic might choose otherwise.
    """

    token: int
    margin: float


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model itself found a token, before any option changed its logits.

    Attributes:
        token: the id.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens at this place with theirs, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: npt.NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """The log-probability of a token by the model's own distribution: the log-softmax of its logits as they are.

    Args:
        logits: float32 [N], of the ids that the tokenizer knows.
        top: number of likeliest tokens to name; of equals the lower id comes first.
    """
    row = logits.astype(np.float64)
    highest = row.max()
    logprobs = row - (highest + np.log(np.exp(row - highest).sum()))
    top = min(top, len(row))
    likeliest = np.argpartition(-row, top - 1)[:top] if top else np.empty(0, np.int64)
    if top:  # a partition takes any of the tokens that are as likely as the last of them
        least = row[likeliest].min()
        likeliest = np.concatenate([np.flatnonzero(row > least), np.flatnonzero(row == least)])[:top]
        likeliest = likeliest[np.lexsort((likeliest, -row[likeliest]))]
    return TokenLogprob(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likeliest))


Row: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""Logits of the ids that the tokenizer knows: as the model gave them, or processed."""


class Constraint(Protocol):
    """Which tokens an answer may hold, by its text alone: a grammar."""

    def append(self, tokens: Sequence[int]) -> None:
        """Take in emitted tokens."""

    def allowed(self, path: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool [ids of the tokenizer]: what may follow the text so far and these tokens; at least one token may."""


class Sampler:
    """Chooses the tokens of one answer. A choice changes nothing here: the same text gives the same choice again.

    Args:
        params: how to sample.
        tokenizer_size: ids the tokenizer knows; ids from here on are padding of the output head and never chosen.
        prompt: token ids before the answer. Penalties and min tokens ask for it; without them it may be left out.
        eos_ids: tokens that end the answer, which `min_tokens` puts off.
        constraint: forbids tokens; None allows all.

    Raises:
        UsageError: a logit bias names a token that does not exist.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer_size: int,
        prompt: Sequence[int] = (),
        eos_ids: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        params.check_tokens(tokenizer_size)
        self.params = params
        self._tokenizer_size = tokenizer_size
        self._length = len(prompt)
        self._biased = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float64)
        self._penalties = TextPenalties(params.penalties, tokenizer_size, prompt) if params.penalties.active else None
        self._eos_ids = np.array(sorted(token for token in eos_ids if token < tokenizer_size), dtype=np.int64)
        self._may_end_at = len(prompt) + params.min_tokens if params.min_tokens else 0
        self._constraint = constraint

    def append(self, tokens: Sequence[int]) -> None:
        """Take in emitted tokens: what is chosen from here on is chosen after them."""
        self._length += len(tokens)
        if self._penalties is not None:
            self._penalties.append(tokens)
        if self._constraint is not None:
            self._constraint.append(tokens)

    def choose(self, logits: npt.NDArray[np.float32], position: int, path: Sequence[int] = ()) -> Choice:
        """The token for absolute position `position`.

        Args:
            logits: float32 [V].
            path: tokens between the text so far (the prompt and what was appended) and this position.

        Raises:
            EngineError: the logits hold NaN or infinity, or nothing but minus infinity.
            UsageError: logit bias, min tokens and constraint forbid every token.
        """
        known = logits[: self._tokenizer_size]
        best = int(known.argmax())  # NaN counts as the highest here, so one look finds every unusable row
        if not np.isfinite(known[best]):
            raise EngineError(
                f"the model gave {known[best]} as the highest logit for position {position}: "
                "its weights are damaged or its numbers overflow; export it again, or with fp32 weights"
            )
        if self._plain_at(position):
            return _highest(known, best) if self.params.temperature == 0.0 else self._draw(known, position)
        return self._choose_processed(self._processed(known, position, path), position)

    def choose_from_two(
        self, ids: npt.NDArray[np.int64], logits: npt.NDArray[np.float32], position: int
    ) -> Choice | None:
        """`choose` from nothing but a row's two highest logits; None where that takes the whole row: to sample, to
        process, to tell equals apart, to leave out padding, to say what is wrong with it.

        Args:
            ids, logits: int64 [2] and float32 [2], the highest first.
        """
        if self.params.temperature > 0.0 or not self._plain_at(position):
            return None
        first, second = float(logits[0]), float(logits[1])
        if not (np.isfinite(first) and first > second and ids.min() >= 0 and ids.max() < self._tokenizer_size):
            return None
        return Choice(int(ids[0]), first - second)

    def _plain_at(self, position: int) -> bool:
        """Whether logits need no processing at this position."""
        unprocessed = self._penalties is None and not len(self._biased) and self._constraint is None
        return unprocessed and position >= self._may_end_at

    def _processed(self, known: npt.NDArray[np.float32], position: int, path: Sequence[int]) -> Row:
        """float64: the logits after bias, penalties, constraint and min tokens."""
        row = known.astype(np.float64)
        row[self._biased] += self._biases
        if self._penalties is not None:
            if position != self._length + len(path):
                raise ValueError(f"a choice for position {position} after {self._length} + {len(path)} tokens")
            self._penalties.apply(row, path)
        if self._constraint is not None:
            row[~self._constraint.allowed(path)] = -np.inf
        if position < self._may_end_at:
            ends = row[self._eos_ids]
            row[self._eos_ids] = -np.inf
            if self._constraint is not None and row.max() == -np.inf:
                row[self._eos_ids] = ends  # nothing else may follow: the constraint is as long as it can be
        return row

    def _choose_processed(self, row: Row, position: int) -> Choice:
        best = int(row.argmax())
        if row[best] == -np.inf:
            others = "logit bias and min tokens" if self._constraint is None else "logit bias and the answer's format"
            raise UsageError(f"{others} forbid every token that the model could choose: allow some")
        return _highest(row, best) if self.params.temperature == 0.0 else self._draw(row, position)

    def _draw(self, row: Row, position: int) -> Choice:
        params = self.params
        candidates = keep_top_k(scaled(row, params.temperature), params.top_k)
        candidates = keep_top_p(candidates, params.top_p)
        candidates = keep_min_p(candidates, params.min_p)
        return _inverse_cdf(candidates, coin(params.seed, params.choice_index, position))


def _highest(row: Row, best: int) -> Choice:
    # argmax takes a third of the time of max, which looks for NaN.
    others = [float(part[part.argmax()]) for part in (row[:best], row[best + 1 :]) if len(part)]
    return Choice(best, float(row[best]) - max(others) if others else float("inf"))


def _inverse_cdf(candidates: TokenFilter, uniform: float) -> Choice:
    """The first id whose cumulative weight exceeds the coin's share of the whole. Ids of weight 0 are never it."""
    cumulative = np.cumsum(candidates.weights)
    total = float(cumulative[-1])
    point = uniform * total
    index = int(np.searchsorted(cumulative, point, side="right"))
    below = float(cumulative[index - 1]) if index else 0.0
    above = float(cumulative[index])
    # 0 and the whole are no boundaries: nothing lies beyond them.
    distances = [d for d, inner in ((point - below, below > 0.0), (above - point, above < total)) if inner]
    margin = min(distances, default=_NO_BOUNDARY * total)
    # What enters by a cut may come before the first candidate and after the last, and make boundaries of both ends.
    reach = min(point - below, above - point)
    for cut in candidates.cuts:
        safe = max(cut.gap, reach - cut.moved)
        margin = min(margin, safe)
        reach = min(reach, safe)
    return Choice(int(candidates.ids[index]), margin / total)


_UNIT = 2.0**-53
"""Step between two coins: 53 random bits fill the mantissa of a float64."""


def coin(seed: int, choice_index: int, position: int) -> float:
    """A uniform number in [0, 1), a multiple of 2**-53.

    Args:
        seed: 64-bit key of the request.
        choice_index: 64-bit second half of the key, one per answer of a request.
        position: absolute position of the token to be chosen.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), Philox4x64-10.
    """
    # Arrays, because numpy reads a list of integers beyond 63 bits as floats and so loses the key.
    key = np.array([seed, choice_index], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    return int(Philox(key=key, counter=counter).random_raw() >> 11) * _UNIT
