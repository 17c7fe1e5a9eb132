"""The Engine contract: what the decode loop and the causal-lm drafter need of a model, whatever runs it.

The KV cache of a sequence is a table with a row per committed token. `forward` computes T new rows on top of the
committed ones, which do not count yet; `commit` makes those that proved right part of the sequence, in order; the rest
are dropped by not being committed. Nothing is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is and how much it can take.

    Attributes:
        vocab_size: width V of the logits (padding rows included).
        feature_kind: what `Step.features` holds: "last_hidden" (after the final norm), "fused_states" (of three layers,
            for an EAGLE-3 head) or "none".
        feature_width: width F of the features.
        max_context: most tokens a sequence may hold, draft nodes of one verify pass not counted.
        max_tree: most rows T of one verify pass, the root included. Prefill chunks may be larger: `max_chunk`.
        max_chunk: most rows T of one prefill chunk.
        kv_dtype: "float16" or "float32".
        exact_trees: whether a tree's rows carry the same bits as one-token steps up to the bounds of the exactness
            suite; False asks for chains.
        source_fp: fingerprint of the checkpoint the engine was made from.
        digest: of what runs where that is not the bundle's graph itself, as sha256 of an engine's plan; "" elsewhere.
    """

    vocab_size: int
    feature_kind: str
    feature_width: int
    max_context: int
    max_tree: int
    max_chunk: int
    kv_dtype: str
    exact_trees: bool
    source_fp: str
    digest: str = ""


@dataclass(frozen=True)
class TopTwo:
    """The two highest logits of each row, the highest first. Among equals any may stand first.

    Attributes:
        ids: int64 [R, 2].
        logits: float32 [R, 2].
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]


class Step:
    """What one forward pass gave.

    Attributes:
        features: float16 [T, F].
        top: of the logits, where the engine gives it by itself; None elsewhere. Whoever needs no more leaves the
            logits where they are.
    """

    def __init__(
        self,
        logits: npt.NDArray[np.float32] | Callable[[], npt.NDArray[np.float32]],
        features: npt.NDArray[np.float16],
        top: TopTwo | None = None,
    ) -> None:
        """Args:
        logits: float32 [R, V], or what fetches them.
        """
        self._logits = logits
        self.features = features
        self.top = top

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """float32 [R, V], one row for each row asked for. Fetched when first asked for, if they lie on a GPU."""
        if callable(self._logits):
            self._logits = self._logits()
        return self._logits

    @property
    def rows(self) -> int:
        """Rows R of the logits."""
        return len(self.logits) if self.top is None else len(self.top.ids)

    def fetch(self) -> None:
        """Fetch the logits, from where the next pass will overwrite them."""
        self._logits = self.logits


class Sequence(Protocol):
    """One sequence's KV cache, owned by the engine that opened it."""

    @property
    def length(self) -> int:
        """Committed rows."""

    @property
    def capacity(self) -> int:
        """Most rows it can hold."""


class Engine(Protocol):
    """A model that one thread at a time may use, for any number of sequences in turn."""

    @property
    def spec(self) -> EngineSpec:
        """What this engine is."""

    def open(self, capacity: int) -> Sequence:
        """A new, empty sequence with room for `capacity` committed tokens.

        Raises:
            EngineError: more than `spec.max_context`, or no memory for it.
        """

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """Run T tokens on top of the committed ones; nothing is committed yet.

        Args:
            tokens: int64 [T].
            positions: int64 [T], absolute.
            tree_mask: bool [T, T], row r sees column c; every committed token is visible to every row.
            logits_rows: rows for which logits are wanted; all when None.

        Raises:
            EngineError: T is beyond the engine's limits.
        """

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """Append these rows of the last `forward` of this sequence to its KV, in this order. May be called once per
        forward.

        Raises:
            EngineError: the sequence is full, or the pass had no such row. The pass can still be committed then.
        """

    def truncate(self, seq: Sequence, length: int) -> None:
        """Forget the committed rows from `length` on, and what the last pass left to be committed.

        A drafter forgets draft tokens that did not come true, a target what its next prompt does not begin with. Within
        an answer a target never needs it.

        Raises:
            EngineError: fewer rows are committed.
        """

    def copy(self, source: Sequence, length: int, target: Sequence) -> None:
        """Give an empty sequence the first `length` committed rows of another one, bit for bit: what texts have in
        common at their beginning is computed once.

        Raises:
            EngineError: the source has fewer rows, or the target has some already or no room for them.
        """


def causal_mask(tokens: int) -> npt.NDArray[np.bool_]:
    """bool [T, T]: each token sees itself and those before it (prefill chunks and chains)."""
    return np.tri(tokens, dtype=np.bool_)


def run_chain(engine: Engine, seq: Sequence, ids: ListLike[int], rows: ListLike[int] | None = None) -> Step:
    """A pass in which each token sees the committed ones and those before it; `rows` as of `Engine.forward`."""
    tokens = np.asarray(ids, np.int64)
    return engine.forward(seq, tokens, seq.length + np.arange(len(tokens)), causal_mask(len(tokens)), rows)


def commit_tokens(engine: Engine, seq: Sequence, ids: ListLike[int]) -> None:
    """Commit tokens chunk by chunk, as a decode loop reads a prompt."""
    for start in range(0, len(ids), engine.spec.max_chunk):
        chunk = ids[start : start + engine.spec.max_chunk]
        run_chain(engine, seq, chunk, [len(chunk) - 1])
        engine.commit(seq, range(len(chunk)))
