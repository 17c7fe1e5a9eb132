"""The target's KV from one answer to the next: prompts begin alike (system prompts), or with most of what was said.

Only rows that a prefill would have computed bit for bit are used again: those of causal passes (prefill chunks, chains,
single tokens). A path committed out of the middle of a tree was computed among masked rows, whose bits may differ, so
the rows from there on are computed again. The text is therefore that of a fresh prefill.

A new answer takes over the sequence of a finished one, or is given a copy of another one's rows, also while the answer
of that one still goes on: so what many prompts begin with is computed once. All sequences together hold no more tokens
than the budget; finished ones make room, the one not used for longest first.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import Engine, Sequence


class KeptSequence:
    """A sequence, and the tokens of those of its rows that can be used again.

    Args:
        seq: empty.
        is_kept: whether another answer may use its rows; without it nothing is remembered.
    """

    def __init__(self, seq: Sequence, is_kept: bool) -> None:
        self.seq = seq
        self._ids: list[int] = []
        self._features: list[npt.NDArray[np.float16]] = []
        self._is_kept = is_kept
        self._is_causal = True

    def commit(self, ids: ListLike[int], rows: ListLike[int], features: npt.NDArray[np.float16]) -> None:
        """These rows of a pass were committed to the sequence.

        Args:
            ids: their tokens.
            features: of all rows of the pass, float16 [T, F].
        """
        self._is_causal = self._is_causal and list(rows) == list(range(len(rows)))
        if self._is_kept and self._is_causal:
            self._ids.extend(ids)
            self._features.append(features[: len(rows)].copy())

    def features(self) -> npt.NDArray[np.float16]:
        """float16 [rows, F] of the rows that can be used again."""
        self._features = [np.concatenate(self._features)]
        return self._features[0]

    def matches(self, wanted: ListLike[int]) -> int:
        """How many of its first rows are those of this text."""
        return shared_length(self._ids, wanted)

    @property
    def known(self) -> int:
        """Rows that can be used again."""
        return len(self._ids)

    def cut(self, engine: Engine, length: int) -> None:
        """Forget the rows from `length` on, of those that can be used again."""
        engine.truncate(self.seq, length)
        self._features = [self.features()[:length]] if length else []
        del self._ids[length:]
        self._is_causal = True

    def copy(self, engine: Engine, source: KeptSequence, length: int) -> None:
        """Take the first rows of another sequence, of those that can be used again; this one is empty."""
        engine.copy(source.seq, length, self.seq)
        self._ids = source._ids[:length]
        self._features = [source.features()[:length].copy()]


def shared_length(known: ListLike[int], wanted: ListLike[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    length = min(len(known), len(wanted))
    differs = np.flatnonzero(np.asarray(known[:length]) != np.asarray(wanted[:length]))
    return int(differs[0]) if len(differs) else length


class KeptSequences:
    """Lends sequences of one engine to answers.

    Args:
        budget: most tokens that all sequences together have room for; None sets no limit.
        is_keeping: keep finished sequences for other answers.
    """

    def __init__(self, engine: Engine, budget: int | None, *, is_keeping: bool = True) -> None:
        self.budget = budget
        self._engine = engine
        self.is_keeping = is_keeping
        self._lent: list[KeptSequence] = []
        self._idle: list[KeptSequence] = []
        """The one not used for longest first."""

    @property
    def held(self) -> int:
        """Tokens that all sequences have room for, lent or idle."""
        return sum(kept.seq.capacity for kept in (*self._lent, *self._idle))

    def matches(self, prompt: ListLike[int]) -> int:
        """How many of a prompt's tokens need not run again if its answer begins now."""
        return max((kept.matches(prompt[:-1]) for kept in self._sources), default=0)

    def lend(self, prompt: ListLike[int], capacity: int) -> KeptSequence | None:
        """A sequence with room for `capacity` tokens that holds the KV of as much of the prompt's beginning as is
        known; None while others hold too much. At least the prompt's last token is left to run, for its logits.

        Raises:
            EngineError: the engine cannot open a sequence of this length, though no other is in use.
        """
        wanted = prompt[:-1]
        source = max(reversed(self._sources), key=lambda kept: kept.matches(wanted), default=None)
        shared = 0 if source is None else source.matches(wanted)
        if source is not None and shared and not self._is_worth_keeping(source, shared, capacity):
            self._idle.remove(source)
            source.cut(self._engine, shared)
            return self._lend(source)
        return self._fresh(source if shared else None, wanted, capacity)

    def take_back(self, kept: KeptSequence) -> None:
        """Its answer is over."""
        self._lent.remove(kept)
        if self.is_keeping:
            self._idle.append(kept)

    def clear(self) -> None:
        """Forget all finished sequences."""
        self._idle.clear()

    @property
    def _sources(self) -> list[KeptSequence]:
        """Whose rows another answer may begin with; the one used last stands last."""
        return [*self._lent, *self._idle]

    def _is_worth_keeping(self, kept: KeptSequence, shared: int, capacity: int) -> bool:
        """Whether to copy the rows rather than to take the sequence over: it is in use, too short, or most of what it
        holds is another text's.
        """
        return kept not in self._idle or kept.seq.capacity < capacity or 2 * shared < kept.known

    def _fresh(self, source: KeptSequence | None, wanted: ListLike[int], capacity: int) -> KeptSequence | None:
        """A sequence that begins with a copy of the source's rows, as far as there is room for both."""
        kept = None if self._is_full(capacity) else self._opened(capacity)
        while kept is None:
            victim = next((each for each in self._idle if each is not source), None)
            if victim is None and source in self._idle:
                victim, source = source, None
            if victim is None:
                return None
            self._idle.remove(victim)
            if victim.seq.capacity >= capacity:  # its buffers are there already, and perhaps its rows
                victim.cut(self._engine, 0 if source is not None else victim.matches(wanted))
                kept = victim
            elif not self._is_full(capacity):
                del victim  # given back before new memory is asked for
                kept = self._opened(capacity)
        if source is not None:
            kept.copy(self._engine, source, source.matches(wanted))
            if source in self._idle and source.known == kept.known:
                self._idle.remove(source)  # all that it holds is in the new one
        return self._lend(kept)

    def _is_full(self, more: int) -> bool:
        return self.budget is not None and self.held + more > self.budget

    def _opened(self, capacity: int) -> KeptSequence | None:
        """A new sequence; None where the engine may have room once another one is gone."""
        try:
            return KeptSequence(self._engine.open(capacity), self.is_keeping)
        except EngineError:
            if not self._idle and not self._lent:
                raise
            return None

    def _lend(self, kept: KeptSequence) -> KeptSequence:
        self._lent.append(kept)
        return kept
