"""The rules of the `Engine` contract that do not depend on what computes: who owns a sequence, how many rows a pass may
have, which of them may be committed, when, and what a sequence forgets.

`KvEngine` keeps them. An engine derives from it and adds how its KV is stored and how a pass is run; its sequences
derive from `EngineSequence`, which counts rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import EngineSpec, Sequence, Step


@dataclass(eq=False)
class EngineSequence:
    """The rows of one sequence, counted.

    Attributes:
        capacity: most rows that may be committed.
        length: committed rows.
        pending: rows of the last pass that are still to be committed; 0 once it was committed or truncated.
    """

    capacity: int
    length: int = field(default=0, init=False)
    pending: int = field(default=0, init=False)


@dataclass(frozen=True)
class PassRows:
    """What a pass takes in beside the KV; T is its rows, R its rows with logits.

    Attributes:
        tokens: int64 [T].
        positions: int64 [T], absolute.
        tree_mask: bool [T, T], row r sees column c.
        wanted: [R], the rows for which logits are wanted.
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    tree_mask: npt.NDArray[np.bool_]
    wanted: ListLike[int]

    @property
    def count(self) -> int:
        """T."""
        return len(self.tokens)


OwnSequence = TypeVar("OwnSequence", bound=EngineSequence)


class KvEngine(ABC, Generic[OwnSequence]):
    """Base of the engines; use one from one thread at a time.

    Args:
        spec: what the engine is.
        kind: class of its sequences.
    """

    def __init__(self, spec: EngineSpec, kind: type[OwnSequence]) -> None:
        self._spec = spec
        self._kind = kind

    @property
    def spec(self) -> EngineSpec:
        """What this engine is."""
        return self._spec

    def open(self, capacity: int) -> OwnSequence:
        """See `Engine.open`."""
        if not 0 < capacity <= self._spec.max_context:
            raise EngineError(f"a sequence of {capacity} tokens does not fit a context of {self._spec.max_context}")
        return self._open(capacity)

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """See `Engine.forward`. A pass that is refused leaves the one before it to be committed."""
        own = self._own(seq)
        limit = max(self._spec.max_tree, self._spec.max_chunk)
        if not 0 < len(tokens) <= limit:
            raise EngineError(f"a pass takes 1 to {limit} tokens, not {len(tokens)}")
        wanted = list(range(len(tokens)) if logits_rows is None else logits_rows)
        rows = PassRows(tokens, positions, tree_mask, wanted)
        self._require_pass(own, rows)
        own.pending = 0  # what the last pass left is overwritten from here on
        step = self._run(own, rows)
        own.pending = rows.count
        return step

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """See `Engine.commit`."""
        own = self._own(seq)
        require_pending(own, own.pending, rows)
        self._keep(own, rows)
        own.length += len(rows)
        own.pending = 0

    def truncate(self, seq: Sequence, length: int) -> None:
        """See `Engine.truncate`. Rows that the last pass left to be committed are forgotten, too."""
        own = self._own(seq)
        if not 0 <= length <= own.length:
            raise EngineError(f"cannot truncate {own.length} committed tokens to {length}")
        self._forget(own, length)
        own.length, own.pending = length, 0

    def copy(self, source: Sequence, length: int, target: Sequence) -> None:
        """See `Engine.copy`."""
        one, other = self._own(source), self._own(target)
        if other.length or not 0 <= length <= min(one.length, other.capacity):
            raise EngineError(
                f"cannot copy {length} of {one.length} committed tokens to a sequence that holds {other.length} and "
                f"has room for {other.capacity}"
            )
        other.pending = 0
        self._copy(one, length, other)
        other.length = length

    def _own(self, seq: Sequence) -> OwnSequence:
        if not isinstance(seq, self._kind):
            raise EngineError("this sequence was opened by another engine")
        return seq

    @abstractmethod
    def _open(self, capacity: int) -> OwnSequence:
        """A new, empty sequence; `capacity` fits the context."""

    def _require_pass(self, seq: OwnSequence, rows: PassRows) -> None:
        """Raises EngineError for a pass that this engine cannot run; any number of rows within its limits can be."""

    @abstractmethod
    def _run(self, seq: OwnSequence, rows: PassRows) -> Step:
        """Run a pass on top of the committed rows, and hold its own K and V until the next pass."""

    @abstractmethod
    def _keep(self, seq: OwnSequence, rows: ListLike[int]) -> None:
        """Store K and V of these rows of the last pass behind the committed ones, in this order. There is room.

        Raises:
            EngineError: it cannot be done; then nothing has changed.
        """

    @abstractmethod
    def _copy(self, source: OwnSequence, length: int, target: OwnSequence) -> None:
        """Store the first `length` committed rows of another sequence as those of this one, which has none."""

    def _forget(self, seq: OwnSequence, length: int) -> None:
        """Give up what the engine knows of committed rows from `length` on. Nothing where they are overwritten."""


def require_room(seq: EngineSequence, rows: int, places: int) -> None:
    """Raises EngineError unless the rows of a pass fit behind the committed ones in a cache of so many places."""
    if seq.length + rows > places:
        raise EngineError(f"a pass of {rows} tokens on {seq.length} committed ones does not fit {places} rows")


def require_pending(seq: Sequence, pending: int, rows: ListLike[int]) -> None:
    """Raises EngineError unless these are rows of the last pass, they are still to be committed, and they fit.

    Args:
        pending: rows of the last pass; 0 once it has been committed.
    """
    if not pending:
        raise EngineError("nothing to commit: each forward pass can be committed once")
    if not all(0 <= row < pending for row in rows):
        raise EngineError(f"the last pass had {pending} rows: {list(rows)} cannot be committed")
    if seq.length + len(rows) > seq.capacity:
        raise EngineError(f"the sequence is full: {seq.length + len(rows)} tokens do not fit {seq.capacity}")
