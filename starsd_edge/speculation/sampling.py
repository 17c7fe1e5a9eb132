"""How the target chooses its next token: sample-and-match with a keyed coin.

The choice at a position depends on the logits, the parameters and the coin of (seed, position) alone, never on a draft.
So the text with speculation is the text without it, token for token, whatever the drafter or the hub does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError, UsageError
from starsd_edge.speculation.coins import coin
from starsd_edge.speculation.filters import Candidates, keep_top_k, keep_top_p, scaled

_NO_BOUNDARY = 1.0
"""Margin of a choice that no small change of the probabilities can alter: there is only one candidate."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    Attributes:
        temperature: 0 chooses the highest logit, the lowest id among equals.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
        seed: 64-bit key of the coins.
        choice_index: second half of the key, one per answer when a request asks for several.

    Raises:
        UsageError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice_index: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(
                f"temperature must be 0 (always the likeliest token) or a positive number, not {self.temperature}"
            )
        if self.top_k < 0:
            raise UsageError(f"top-k must be 0 (no limit) or a number of tokens, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top-p must lie above 0 and be at most 1 (no limit), not {self.top_p}")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"a seed is an integer from 0 to {2**64 - 1}, not {self.seed}")
        if not 0 <= self.choice_index < 2**64:
            raise UsageError(f"a choice index is an integer from 0 to {2**64 - 1}, not {self.choice_index}")


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


class Sampler:
    """Chooses the tokens of one request. Holds no state: the same logits at the same position give the same choice.

    Args:
        params: how to sample.
        tokenizer_size: ids the tokenizer knows; ids from here on are padding of the output head and never chosen.
    """

    def __init__(self, params: SamplingParams, tokenizer_size: int) -> None:
        self.params = params
        self._tokenizer_size = tokenizer_size

    def choose(self, logits: npt.NDArray[np.float32], position: int) -> Choice:
        """The token for absolute position `position`.

        Args:
            logits: float32 [V].

        Raises:
            EngineError: the logits hold NaN or infinity, or nothing but minus infinity.
        """
        known = logits[: self._tokenizer_size]
        best = int(known.argmax())  # NaN counts as the highest here, so one look finds every unusable row
        if not np.isfinite(known[best]):
            raise EngineError(
                f"the model gave {known[best]} as the highest logit for position {position}: "
                "its weights are damaged or its numbers overflow; export it again, or with fp32 weights"
            )
        if self.params.temperature == 0.0:
            return _highest(known, best)
        return self._draw(known, position)

    def _draw(self, logits: npt.NDArray[np.float32], position: int) -> Choice:
        params = self.params
        candidates = keep_top_k(scaled(logits, params.temperature), params.top_k)
        candidates = keep_top_p(candidates, params.top_p)
        return _inverse_cdf(candidates, coin(params.seed, params.choice_index, position))


def _highest(logits: npt.NDArray[np.float32], best: int) -> Choice:
    # argmax takes a third of the time of max, which looks for NaN.
    others = [float(part[part.argmax()]) for part in (logits[:best], logits[best + 1 :]) if len(part)]
    return Choice(best, float(logits[best]) - max(others) if others else float("inf"))


def _inverse_cdf(candidates: Candidates, uniform: float) -> Choice:
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
    for cut in candidates.cuts:
        margin = min(margin, max(cut.gap, margin - cut.moved))
    return Choice(int(candidates.ids[index]), margin / total)
