"""The choice rule by its definition: whole sorts, plain Python floats, exact sums. Slow, and nothing is shared."""

from __future__ import annotations

import math
from collections.abc import Sequence


def reference_probabilities(
    logits: Sequence[float], temperature: float, top_k: int = 0, top_p: float = 1.0
) -> list[float]:
    """Probability of every id after temperature, top-k and top-p; 0 for those filtered out."""
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        ranked = ranked[:top_k]
    total = math.fsum(weights[token] for token in ranked)
    kept: list[int] = []
    for token in ranked:
        if top_p < 1.0 and kept and math.fsum(weights[t] for t in kept) / total >= top_p:
            break
        kept.append(token)
    total = math.fsum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


def reference_choice(probabilities: Sequence[float], uniform: float) -> tuple[int, float]:
    """The id that the coin falls on, and the coin's distance from the nearest boundary between two ids."""
    chosen = -1
    distance = 1.0
    for token, probability in enumerate(probabilities):
        if not probability:
            continue
        below = math.fsum(probabilities[:token])
        if 0 < below < 1 - 1e-15:  # beyond it lies less than float64 tells from nothing
            distance = min(distance, abs(uniform - below))
        if uniform >= below:
            chosen = token
    return chosen, distance
