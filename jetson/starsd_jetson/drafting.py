"""Draft sources: none, the target's own n-grams, or the hub.

A source is told every true token and may be asked for a tree under the last one. Whatever it gives back changes the
speed of the answer and never its text. So a source may fail, be late or be wrong; it must only not block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from starsd_edge.planning.pass_times import VerifyCurves
from starsd_edge.protocol.codes import POOR, TIMED
from starsd_edge.speculation.ngram import NgramIndex
from starsd_edge.speculation.tree import DraftShape, DraftTree
from starsd_edge.telemetry.rounds import NGRAM, NONE
from starsd_jetson.draft_size import DraftCostModel

NOW = float("-inf")
"""A time that has always passed: nothing has to be waited for."""


@dataclass(frozen=True)
class RoundDraft:
    """A draft tree under the present root, and what it cost.

    Attributes:
        tree: the draft tree; empty when there is none.
        origin: what drafted it: `HUB`, `NGRAM` or `NONE`.
        late: the tree was asked for under an earlier root and rebased.
        bytes_up: payload of the request sent for this round, whether or not its answer came.
        bytes_down: payload of the drafts received since the last round, used or not.
        wait_s: time spent waiting, in seconds.
        service_s: seconds that the hub's drafter took for the draft.
        expected: expected tokens of a round with this tree, the bonus token included.
        why_off: why there is no tree, or none of the hub where there is a hub: one of the reasons in
            `starsd_edge.protocol.codes`; empty where the tree is the one that was wanted.
    """

    tree: DraftTree
    origin: str
    late: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    wait_s: float = 0.0
    service_s: float = 0.0
    expected: float = 1.0
    why_off: str = ""


class DraftSource(Protocol):
    """Drafts for one answer at a time: `begin`, then rows and rounds (`ask`, `take`, `verified`), then `end`."""

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        """An answer to this prompt begins; `sampling_kind` is "greedy" or "sampled". The prompt's rows are appended as
        they are computed.
        """

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """True rows, in order: row i is the token at position i + 1 and the feature (float16 [len(ids), F]) of position
        i.
        """

    def extend(self) -> None:
        """More rows will come before a draft is wanted; a source that sends them elsewhere may do so now."""

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        """Ask for a tree of at most this shape under the last token appended. Returns at once.

        Args:
            others: answers that use the device while this one waits for its draft.
        """

    def ready_at(self) -> float:
        """When to take the tree asked for: `NOW` where it is here or not worth a wait, else the time, on the source's
        clock, until which a wait for it pays. Returns at once, and may say `NOW` when asked again.
        """

    def take(self) -> RoundDraft:
        """The tree asked for. Before the time that `ready_at` gives it is waited for until then."""

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        """The round of the draft taken last is over.

        Args:
            rows: rows of the verify pass, the root included.
            tokens: tokens that the round emitted.
            seconds: time that the round took the target, without the wait for the draft.
        """

    def end(self) -> None:
        """The answer is over."""


class NoDrafts:
    """Plain decoding: one token per round."""

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        """Nothing to remember."""

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Nothing to remember."""

    def extend(self) -> None:
        """Nothing to send."""

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        """Nothing to prepare."""

    def ready_at(self) -> float:
        """There is nothing to wait for."""
        return NOW

    def take(self) -> RoundDraft:
        """The empty tree."""
        return RoundDraft(DraftTree.empty(), NONE)

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        """Nothing to learn."""

    def end(self) -> None:
        """Nothing to release."""


class KeptFeatures(NoDrafts):
    """Plain decoding that keeps the features of the rows it is told of."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.float16]] = []

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Keep copies: the engine may use their memory again."""
        if features is not None:
            self._parts.append(features.copy())

    @property
    def features(self) -> npt.NDArray[np.float16] | None:
        """float16 [rows, F]; None where the engine gives none."""
        return np.concatenate(self._parts) if self._parts else None


class NgramDrafts:
    """Drafts of the target itself: the tokens that followed the last few tokens where these stood in the text before.
    The tree is cut to what is worth verifying by its own cost model.

    Args:
        measured: times of verify passes; see `DraftCostModel`.
    """

    def __init__(self, measured: VerifyCurves | None = None) -> None:
        self._cost_model = DraftCostModel(measured)
        self._index = NgramIndex()
        self._shape = DraftShape(0, 0)

    def begin(self, prompt: Sequence[int], sampling_kind: str) -> None:
        """Forget the last answer."""
        self._cost_model.begin(len(prompt))
        self._index = NgramIndex()
        self._index.append(prompt[:1])

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Index the tokens; features are of no use here."""
        self._index.append(ids)
        self._cost_model.estimator.append(ids)

    def extend(self) -> None:
        """Nothing to send."""

    def ask(self, shape: DraftShape, others: int = 0) -> None:
        """Remember the shape; drafting itself takes microseconds."""
        self._shape = self._cost_model.wanted(shape)

    def ready_at(self) -> float:
        """There is nothing to wait for."""
        return NOW

    def take(self) -> RoundDraft:
        """The tree of the most recent, longest matches."""
        tree = self._index.draft(self._shape)
        if len(tree) == 0:
            return RoundDraft(tree, NONE)
        self._cost_model.estimator.expect(tree, self._shape.max_depth)
        if self._cost_model.retimes_plain(tree):
            return RoundDraft(DraftTree.empty(), NONE, why_off=TIMED)
        worthy = self._cost_model.worth(tree)
        if len(worthy) == 0:
            return RoundDraft(worthy, NONE, why_off=POOR)
        return RoundDraft(worthy, NGRAM, expected=self._cost_model.tokens(worthy))

    def verified(self, rows: int, tokens: int, seconds: float) -> None:
        """Give the cost model the time of the round."""
        self._cost_model.times.add(rows, seconds)

    def end(self) -> None:
        """Nothing to release."""
