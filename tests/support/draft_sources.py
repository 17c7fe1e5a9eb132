"""Draft sources for tests: those that know the future, those that guess, and those that lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import HUB
from starsd_jetson.drafting import NOW, RoundDraft
from tests.support.trees import random_tree, tree_of

Follow = Callable[[Sequence[int]], int]


def future(follow: Follow, text: Sequence[int], length: int) -> list[int]:
    """The next tokens after this text."""
    ahead = list(text)
    for _ in range(length):
        ahead.append(follow(ahead))
    return ahead[len(text) :]


class ScriptedDrafts:
    """Makes each tree from the text so far and the shape asked for; checks that the loop keeps to the contract."""

    def __init__(self, script: Callable[[list[int], DraftShape], DraftTree], feature_width: int = 0) -> None:
        self.script = script
        self._feature_width = feature_width
        self.text: list[int] = []
        self.features: list[npt.NDArray[np.float16]] = []
        self.shapes: list[DraftShape] = []
        self.opened = 0
        self.ended = 0

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        assert self.opened == self.ended, "the last answer was not ended"
        self.opened += 1
        self.text = [prompt[0]]
        self.features = []

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        if self._feature_width:
            assert features is not None
            assert features.shape == (len(ids), self._feature_width)
            self.features.extend(features)
        else:
            assert features is None
        self.text.extend(ids)

    def extend(self) -> None:
        pass

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        self.shapes.append(shape)

    def ready_at(self) -> float:
        return NOW

    def take(self) -> RoundDraft:
        return RoundDraft(self.script(self.text, self.shapes[-1]), HUB)

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        pass

    def end(self) -> None:
        self.ended += 1


def knowing(follow: Follow, depth: int | None = None) -> ScriptedDrafts:
    """Always right, as deep as asked for (or deeper)."""
    return ScriptedDrafts(lambda text, shape: DraftTree.chain(future(follow, text, depth or shape.max_depth)))


def half_knowing(follow: Follow, seed: int, vocab_size: int) -> ScriptedDrafts:
    """A tree in which the true path is one branch among others, or breaks off into error, or is not there."""
    rng = np.random.default_rng(seed)

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        paths = [rng.integers(0, vocab_size, size=rng.integers(1, 5)).tolist() for _ in range(rng.integers(0, 3))]
        true = future(follow, text, int(rng.integers(0, 6)))
        paths.insert(int(rng.integers(0, len(paths) + 1)), [*true, int(rng.integers(vocab_size))])
        return tree_of(path for path in paths if path)

    return ScriptedDrafts(script)


def guessing(seed: int, vocab_size: int) -> ScriptedDrafts:
    """Random trees of any form."""
    rng = np.random.default_rng(seed)
    return ScriptedDrafts(lambda text, shape: random_tree(rng, DraftShape(12, 6, 3), vocab_size))


def oversized(follow: Follow) -> ScriptedDrafts:
    """Always right and far too deep, with a side branch at every level."""

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        true = future(follow, text, 30)
        return tree_of([true, *([*true[:level], (true[level] + 1) % 20] for level in range(10))])

    return ScriptedDrafts(script)


def stale(follow: Follow, behind: int) -> ScriptedDrafts:
    """Right some tokens ago, and not rebased."""

    def script(text: list[int], shape: DraftShape) -> DraftTree:
        return DraftTree.chain(future(follow, text[: max(1, len(text) - behind)], 4))

    return ScriptedDrafts(script)


def impossible(seed: int) -> ScriptedDrafts:
    """Ids that no vocabulary has, among good ones."""
    rng = np.random.default_rng(seed)
    return ScriptedDrafts(lambda text, shape: DraftTree.chain([int(rng.choice([-5, 2**31, 2**40])), 1, 2]))
