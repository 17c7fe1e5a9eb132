"""Greedy text: the tokens that a model says by itself, and how sure it was of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starsd_edge.runtime.engine import Engine, commit_tokens, run_chain

TOKENS = 16
MOST_PROMPT_TOKENS = 24
_TIE = 6.0
"""A near tie: two logits whose difference is no more than so many times the allowed one. Each may move by it, and some
places by several times the mean.
"""


@dataclass(frozen=True)
class Text:
    """What was said to a prompt.

    Attributes:
        prompt: its tokens.
        ids: the likeliest token at each place, given those before it.
        gaps: by how much its logit was above the second.
        spread: root mean square of all logits.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    gaps: Sequence[float]
    spread: float


def greedy_text(
    engine: Engine, prompt: Sequence[int], vocab_size: int, tokens: int = TOKENS, follow: Sequence[int] = ()
) -> Text:
    """Say something, token by token.

    Args:
        vocab_size: ids from here on are padding and never chosen.
        follow: go on with these tokens, whichever are chosen, so that two engines are asked the same.

    Raises:
        EngineError: the engine's context is too short.
    """
    seq = engine.open(len(prompt) + tokens)
    commit_tokens(engine, seq, prompt[:-1])
    last, ids, gaps, squares = prompt[-1], [], [], 0.0
    for place in range(tokens):
        logits = run_chain(engine, seq, [last]).logits[0, :vocab_size].astype(np.float64)
        engine.commit(seq, [0])
        chosen = int(logits.argmax())
        ids.append(chosen)
        gaps.append(float(logits[chosen] - np.partition(logits, -2)[-2]))
        squares += float(np.mean(logits**2))
        last = follow[place] if place < len(follow) else chosen
    return Text(list(prompt), ids, gaps, float(np.sqrt(squares / tokens)))


def wrong_tokens(found: Text, expected: Text, bound: float) -> tuple[list[int], list[int]]:
    """Places where another token was chosen: those where both were nearly as likely, and those where they were not.

    Args:
        bound: the allowed difference between logits, relative.
    """
    places = [place for place, (ours, theirs) in enumerate(zip(found.ids, expected.ids, strict=True)) if ours != theirs]
    close = [place for place in places if expected.gaps[place] <= _TIE * bound * expected.spread]
    return close, [place for place in places if place not in close]
