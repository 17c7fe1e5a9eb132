"""The draft trees that a drafter would have given along known texts, and the rounds that would have followed.

A target's text does not depend on the drafts, so it is decoded only once, plainly and with its features kept. Then a
drafter is asked for a tree under every token of the text. Each tree shows how many tokens a round that begins there
would have given. Rounds as a target runs them are those that begin where the one before ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from starsd_edge.speculation.tree import ROOT, DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB, Round, RoundStats

Features = npt.NDArray[np.float16]

_DRAWS = 2000
"""Bootstrap samples of the texts behind a confidence interval: enough for two stable digits."""
_SPREAD = (2.5, 97.5)
"""Percentiles of the bootstrap that bound the 95 % interval."""


@dataclass(frozen=True)
class Passage:
    """A text and the target's features along it.

    Attributes:
        ids: prompt and answer.
        prompt_tokens: how many of them are the prompt.
        features: float16 [len(ids) - 1, F] at least, at each position; None where the drafter needs none.
    """

    ids: Sequence[int]
    prompt_tokens: int
    features: Features | None


class DraftSession(Protocol):
    """A drafter's session on one text."""

    def extend(self, first_row: int, ids: Sequence[int], features: Features | None) -> None:
        """Take in true rows, in order."""

    def draft(self, shape: DraftShape) -> DraftTree:
        """A tree of at most this shape under the last true row."""


def rounds_from(passage: Passage, session: DraftSession, shape: DraftShape) -> list[Round]:
    """The round that would begin at each token of the answer but the last."""
    return list(_rounds(passage, session, shape))


def _rounds(passage: Passage, session: DraftSession, shape: DraftShape) -> Iterator[Round]:
    held = 0
    for root in range(passage.prompt_tokens, len(passage.ids) - 1):
        features = None if passage.features is None else passage.features[held:root]
        session.extend(held, passage.ids[held + 1 : root + 1], features)
        held = root
        left = len(passage.ids) - 1 - root  # the last of them is the round's own token
        tree = session.draft(shape.clamp(shape.max_nodes, left - 1))
        yield _judge(tree, passage.ids[root + 1 :])


def _judge(tree: DraftTree, following: Sequence[int]) -> Round:
    """The round that verifying the tree would have given, when `following` is the text after its root."""
    node, accepted = ROOT, 0
    for token in following:
        child = tree.children.get(node, {}).get(token)
        if child is None:
            break
        node, accepted = child, accepted + 1
    offered = accepted + (node in tree.children)
    emitted = min(accepted + 1, len(following))
    return Round(HUB if len(tree) else "none", len(tree), accepted, offered, emitted)


def walk(rounds: Sequence[Round]) -> RoundStats:
    """The rounds of a target: each begins where the one before ended."""
    stats = RoundStats()
    root = 0
    while root < len(rounds):
        stats.add(rounds[root])
        root += rounds[root].emitted
    return stats


@dataclass(frozen=True)
class Paired:
    """One way of drafting compared with another on the same texts.

    Attributes:
        change: change of the mean tokens of a round, as a share of the other way's.
        low, high: its 95 % interval, by bootstrap over the texts.
        starts: number of tokens at which rounds began.
    """

    change: float
    low: float
    high: float
    starts: int


def compare(one: Sequence[Sequence[Round]], other: Sequence[Sequence[Round]], draw: np.random.Generator) -> Paired:
    """The change of mean tokens per round from `other` to `one`, paired by text, over every start."""
    sums = np.array([[sum(r.emitted for r in a), sum(r.emitted for r in b)] for a, b in zip(one, other, strict=True)])
    chosen = draw.integers(0, len(sums), (_DRAWS, len(sums)))
    drawn = sums[chosen].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1] - 1, _SPREAD)
    total = sums.sum(axis=0)
    return Paired(float(total[0] / total[1] - 1), float(low), float(high), sum(map(len, one)))


def through(passage: Passage, codec: Callable[[Features], Features]) -> Passage:
    """The same text with features as they come out of a codec."""
    features = None if passage.features is None else codec(passage.features)
    return Passage(passage.ids, passage.prompt_tokens, features)
