"""The choice rule by its definition: whole sorts, plain Python floats, exact sums. Slow, and nothing is shared."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from starsd_edge.speculation.sampling import SamplingParams, coin


def reference_token(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    eos_ids: Collection[int] = (),
) -> int:
    """What follows the prompt and the answer so far; the whole text is counted anew."""
    processed = reference_processed(logits, params, prompt, answer, eos_ids)
    if params.temperature == 0.0:
        return processed.index(max(processed))
    kept = reference_probabilities(processed, params.temperature, params.top_k, params.top_p, params.min_p)
    return reference_choice(kept, coin(params.seed, params.choice_index, len(prompt) + len(answer)))[0]


def reference_processed(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    eos_ids: Collection[int] = (),
) -> list[float]:
    """Logits after bias, penalties and min tokens, id by id."""
    processed = []
    for token, raw in enumerate(logits):
        logit = raw + dict(params.logit_bias).get(token, 0.0)
        if token in prompt or token in answer:
            factor = params.penalties.repetition
            logit = logit / factor if logit > 0 else logit * factor
        if token in answer:
            logit -= params.penalties.presence
        for emitted in answer:
            if emitted == token:
                logit -= params.penalties.frequency
        if token in eos_ids and len(answer) < params.min_tokens:
            logit = -math.inf
        processed.append(logit)
    return processed


def reference_probabilities(
    logits: Sequence[float], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """Probability of every id after temperature, top-k, top-p and min-p; 0 for those filtered out."""
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
    kept = [token for token in kept if weights[token] >= min_p * weights[ranked[0]]]
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
