"""From processed logits to the tokens that may be drawn and their weights: temperature, top-k, top-p, min-p, in this
order.

Each filter remembers how near its cut came to keeping another token: that is where other arithmetic might draw from
another set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SORT_AT_ONCE = 2048
"""Number of weights up to which sorting them takes less time than narrowing them down further."""


@dataclass(frozen=True)
class Cut:
    """Where a filter cut, in the same unnormalised unit as the weights.

    Attributes:
        gap: how much a weight, or a sum of weights, must change for the cut to fall elsewhere.
        moved: weight that would then enter or leave.
    """

    gap: float
    moved: float


@dataclass(frozen=True)
class TokenFilter:
    """Tokens that may be drawn.

    Attributes:
        ids: int64 [n], ascending.
        weights: float64 [n], probabilities up to a common factor; the likeliest token has 1.
        cuts: cuts of the filters that dropped tokens, or might have.
    """

    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    cuts: tuple[Cut, ...] = ()


def scaled(logits: npt.NDArray[np.float32] | npt.NDArray[np.float64], temperature: float) -> npt.NDArray[np.float64]:
    """float64 [V]: (logits - highest) / temperature, so that the highest is 0 and no temperature overflows."""
    distances = logits.astype(np.float64)
    distances -= distances.max()
    with np.errstate(over="ignore"):
        distances /= temperature
    return distances


def keep_top_k(distances: npt.NDArray[np.float64], top_k: int) -> TokenFilter:
    """The k highest of `scaled` logits, the lowest ids among equals; all of them when `top_k` is 0."""
    if not 0 < top_k < len(distances):
        return TokenFilter(np.arange(len(distances)), np.exp(distances))
    last, first_dropped = len(distances) - top_k, len(distances) - top_k - 1
    ranked = np.partition(distances, (first_dropped, last))
    ids = _highest(distances, ranked[last], top_k)
    moved, below = np.exp(ranked[last]), np.exp(ranked[first_dropped])
    return TokenFilter(ids, np.exp(distances[ids]), (Cut(float(moved - below), float(moved)),))


def keep_top_p(candidates: TokenFilter, top_p: float) -> TokenFilter:
    """The fewest likeliest candidates whose share of the weight reaches `top_p`, the lowest ids among equals."""
    if top_p >= 1.0:
        return candidates
    weights = candidates.weights
    wanted = top_p * float(weights.sum())
    count, before, band = _band(weights, wanted)
    ranked = np.sort(band)[::-1]
    reached = before + np.cumsum(ranked)
    last = min(int(np.searchsorted(reached, wanted)), len(ranked) - 1)
    kept = _highest(weights, ranked[last], count + last + 1)
    # The cut falls elsewhere if the sum up to the last kept token fell short, or the sum before it already sufficed.
    gap = min(abs(float(reached[last]) - wanted), wanted - (float(reached[last - 1]) if last else before))
    return TokenFilter(candidates.ids[kept], weights[kept], (*candidates.cuts, Cut(gap, float(ranked[last]))))


def keep_min_p(candidates: TokenFilter, min_p: float) -> TokenFilter:
    """The candidates at least `min_p` times as likely as the likeliest, whose weight is 1."""
    if min_p == 0.0:
        return candidates
    weights = candidates.weights
    kept = weights >= min_p
    # Many may stand near this cut, also where it drops nothing, and what moves it may move them all.
    near = weights[(weights > min_p / 2) & (weights < min_p * 2)]
    cut = Cut(float(np.abs(near - min_p).min(initial=min_p / 2)), float(near.sum()))
    return TokenFilter(candidates.ids[kept], weights[kept], (*candidates.cuts, cut))


def _band(weights: npt.NDArray[np.float64], wanted: float) -> tuple[int, float, npt.NDArray[np.float64]]:
    """The few weights among which the sum over falling weights reaches `wanted`: quickselect by sum, not by rank.

    Returns:
        How many weights are larger than all of the band, their sum (below `wanted`), and the band.
    """
    count, before, band = 0, 0.0, weights
    while len(band) > _SORT_AT_ONCE:
        larger = band > band.mean()
        heavy = band[larger]
        if not 0 < len(heavy) < len(band):
            break
        reached = before + float(heavy.sum())
        if reached >= wanted:
            band = heavy
        else:
            count, before, band = count + len(heavy), reached, band[~larger]
    return count, before, band


def _highest(values: npt.NDArray[np.float64], threshold: float, count: int) -> npt.NDArray[np.int64]:
    """Ascending indices of the `count` highest values, the `count`-th of which is `threshold`."""
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))
