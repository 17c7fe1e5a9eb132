"""The target's KV from one answer to the next: a chat's next prompt begins with most of what was said before.

Only rows that a prefill would have computed bit for bit are used again: those of causal passes (prefill chunks, chains,
single tokens). A path committed out of the middle of a tree was computed among masked rows, whose bits may differ, so
the rows from there on are computed again. The text is therefore that of a fresh prefill.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike

import numpy as np
import numpy.typing as npt

from starsd_edge.runtime.engine import Engine, Sequence


class KeptSequence:
    """One sequence of one engine, lent to one answer after the other."""

    def __init__(self) -> None:
        self._seq: Sequence | None = None
        self._ids: list[int] = []
        self._features: list[npt.NDArray[np.float16]] = []
        self._is_causal = True

    def resume(self, engine: Engine, prompt: ListLike[int], capacity: int) -> Sequence:
        """A sequence with room for `capacity` tokens that holds the KV of as much of the prompt's beginning as is
        known. At least the prompt's last token is left to run, for its logits.

        Raises:
            EngineError: the engine cannot open a sequence of this length.
        """
        if self._seq is None or self._seq.capacity < capacity:
            self._seq = None  # let go of the old buffers before new ones are made
            self._forget_from(0)
            self._seq = engine.open(capacity)
        shared = _shared_length(self._ids, prompt[:-1])
        self._forget_from(shared)
        engine.truncate(self._seq, shared)
        return self._seq

    def commit(self, ids: ListLike[int], rows: ListLike[int], features: npt.NDArray[np.float16]) -> None:
        """These rows of a pass were committed to the sequence.

        Args:
            ids: their tokens.
            features: theirs, float16 [len(ids), F].
        """
        self._is_causal = self._is_causal and list(rows) == list(range(len(rows)))
        if self._is_causal:
            self._ids.extend(ids)
            self._features.append(features)

    def features(self) -> npt.NDArray[np.float16]:
        """float16 [rows, F] of the rows that can be used again."""
        return np.concatenate(self._features)

    def _forget_from(self, length: int) -> None:
        self._features = [self.features()[:length]] if length else []
        del self._ids[length:]
        self._is_causal = True


def _shared_length(known: ListLike[int], wanted: ListLike[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    length = min(len(known), len(wanted))
    differs = np.flatnonzero(np.asarray(known[:length]) != np.asarray(wanted[:length]))
    return int(differs[0]) if len(differs) else length
