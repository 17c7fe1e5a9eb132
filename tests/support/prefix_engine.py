"""An engine without a model: logits are a pure, seeded function of the token prefix.

A row's prefix is the committed tokens and the row's ancestors-or-self, in order. So one-token steps and verify passes
agree bit for bit, any difference between two decoding loops is a fault of the loops, and every call that breaks the
Engine contract is refused.

The logits mix a part that depends on the last token (texts repeat themselves, so drafting pays) with a part that
depends on the whole prefix (repetitions break off, and a wrong commit anywhere changes all that follows).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import EngineSpec, Sequence, Step
from starsd_edge.runtime.kv_engine import require_pending

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass
class PrefixSequence:
    """Committed tokens, and the prefixes of the last forward pass until they are committed."""

    limit: int
    tokens: list[int] = field(default_factory=list)
    pending: list[list[int]] | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def capacity(self) -> int:
        return self.limit


class PrefixEngine:
    """See the module. Everything it counts is for tests to look at.

    Args:
        seed: two engines with the same seed are the same model.
        vocab_size: width of the logits; the last `padding` ids are padding with the highest logits of all, which no
            sampler may choose.
        order_weight: how much the last token decides.
        prefix_weight: how much the whole prefix decides.
        eos_id: a token whose logit is raised by `eos_bonus`, so that answers end by themselves.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        vocab_size: int = 24,
        padding: int = 0,
        max_context: int = 256,
        max_tree: int = 16,
        max_chunk: int = 32,
        feature_width: int = 0,
        order_weight: float = 3.0,
        prefix_weight: float = 1.0,
        eos_id: int | None = None,
        eos_bonus: float = 0.0,
        exact_trees: bool = True,
        gaps: bool = False,
    ) -> None:
        self._seed = seed
        self._gaps = gaps
        self._padding = padding
        self._order_weight = order_weight
        self._prefix_weight = prefix_weight
        self._eos = (eos_id, eos_bonus)
        self.spec = EngineSpec(
            vocab_size=vocab_size,
            feature_kind="last_hidden" if feature_width else "none",
            feature_width=feature_width,
            max_context=max_context,
            max_tree=max_tree,
            max_chunk=max_chunk,
            kv_dtype="float32",
            exact_trees=exact_trees,
            source_fp=f"{seed:064x}",
        )
        self.forward_sizes: list[int] = []
        """Rows of each forward pass so far."""
        self.copied_rows = 0

    @property
    def tokenizer_size(self) -> int:
        """Ids that are not padding."""
        return self.spec.vocab_size - self._padding

    def prefix_logits(self, prefix: ListLike[int]) -> npt.NDArray[np.float32]:
        """float32 [V]: what follows this text. A new array each time."""
        weights = self._order_weight, self._prefix_weight
        logits = _logits(self._seed, self.spec.vocab_size, weights, tuple(prefix)).copy()
        eos_id, eos_bonus = self._eos
        if eos_id is not None:
            logits[eos_id] += eos_bonus
        if self._padding:
            logits[-self._padding :] += logits.max() + 10
        return logits.astype(np.float32)

    def prefix_features(self, prefix: ListLike[int]) -> npt.NDArray[np.float16]:
        """float16 [F]: the features of the last token of this text."""
        return (_uniforms(_digest(self._seed + 2, prefix), self.spec.feature_width) - 0.5).astype(np.float16)

    def open(self, capacity: int) -> PrefixSequence:
        if not 0 < capacity <= self.spec.max_context:
            raise EngineError(f"a capacity of {capacity} is not within the context of {self.spec.max_context}")
        return PrefixSequence(capacity)

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        assert isinstance(seq, PrefixSequence)
        self._check_arrays(tokens, positions, tree_mask)
        prefixes = [seq.tokens + tokens[seen].tolist() for seen in tree_mask]
        self._check_tree(seq, positions, tree_mask)
        seq.pending = prefixes
        self.forward_sizes.append(len(tokens))
        rows = range(len(tokens)) if logits_rows is None else logits_rows
        logits = np.zeros((len(rows), self.spec.vocab_size), dtype=np.float32)
        for index, row in enumerate(rows):
            logits[index] = self.prefix_logits(prefixes[row])
        features = np.zeros((len(tokens), self.spec.feature_width), dtype=np.float16)
        if self.spec.feature_width:
            features[:] = [self.prefix_features(prefix) for prefix in prefixes]
        return Step(logits, features)

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        assert isinstance(seq, PrefixSequence)
        require_pending(seq, 0 if seq.pending is None else len(seq.pending), rows)
        assert seq.pending is not None
        committed = list(seq.tokens)
        for row in rows:
            committed.append(seq.pending[row][-1])
            if seq.pending[row] != committed:
                raise EngineError(f"row {row} does not hang from the rows committed before it")
        seq.tokens, seq.pending = committed, None

    def truncate(self, seq: Sequence, length: int) -> None:
        assert isinstance(seq, PrefixSequence)
        if not 0 <= length <= seq.length:
            raise EngineError(f"cannot truncate {seq.length} rows to {length}")
        seq.tokens, seq.pending = seq.tokens[:length], None

    def copy(self, source: Sequence, length: int, target: Sequence) -> None:
        assert isinstance(source, PrefixSequence)
        assert isinstance(target, PrefixSequence)
        if target.length or not 0 <= length <= min(source.length, target.capacity):
            raise EngineError(f"cannot copy {length} of {source.length} rows onto {target.length}")
        target.tokens = source.tokens[:length]
        self.copied_rows += length

    def _check_arrays(
        self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], tree_mask: npt.NDArray[np.bool_]
    ) -> None:
        rows = len(tokens)
        if [array.dtype.name for array in (tokens, positions, tree_mask)] != ["int64", "int64", "bool"]:
            raise EngineError(f"wrong dtypes: {tokens.dtype}, {positions.dtype}, {tree_mask.dtype}")
        if tokens.shape != (rows,) or positions.shape != (rows,) or tree_mask.shape != (rows, rows):
            raise EngineError(f"wrong shapes: {tokens.shape}, {positions.shape}, {tree_mask.shape}")
        if not rows:
            raise EngineError("a forward pass of no tokens")
        chunk = np.array_equal(tree_mask, np.tri(rows, dtype=np.bool_))
        limit = max(self.spec.max_tree, self.spec.max_chunk) if chunk else self.spec.max_tree
        if rows > limit:
            raise EngineError(f"{rows} rows are more than this engine takes ({limit})")
        if tokens.min() < 0 or tokens.max() >= self.spec.vocab_size:
            raise EngineError(f"a token id outside the vocabulary of {self.spec.vocab_size}")

    def _check_tree(
        self, seq: PrefixSequence, positions: npt.NDArray[np.int64], tree_mask: npt.NDArray[np.bool_]
    ) -> None:
        if not tree_mask.diagonal().all() or np.triu(tree_mask, 1).any():
            raise EngineError("every row must see itself and none that stand after it")
        seen_by_seen = tree_mask.astype(np.float32) @ tree_mask.astype(np.float32) > 0
        if (seen_by_seen & ~tree_mask).any():
            row = int((seen_by_seen & ~tree_mask).any(axis=1).argmax())
            raise EngineError(f"row {row} sees a row without seeing all of that row's ancestors")
        if self._gaps and (np.diff(positions) > 1).all():
            return
        if not np.array_equal(positions, seq.length + tree_mask.sum(axis=1) - 1):
            raise EngineError(f"positions {positions.tolist()} do not fit the mask on {seq.length} committed rows")
        if positions.max() >= self.spec.max_context:
            raise EngineError(f"position {positions.max()} lies beyond the context of {self.spec.max_context}")


@functools.lru_cache(maxsize=8192)  # one text is decoded again and again, with other drafts
def _logits(
    seed: int, vocab_size: int, weights: tuple[float, float], prefix: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    # -log(-log(u)) is a Gumbel number: a few tokens stand out, as in a real model.
    whole = -np.log(-np.log(_uniforms(_digest(seed + 1, prefix), vocab_size)))
    return weights[0] * _habits(seed, vocab_size, prefix[-1:]) + weights[1] * whole


@functools.lru_cache(maxsize=8192)
def _habits(seed: int, vocab_size: int, last: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The part that depends on the last token."""
    order = _uniforms(_digest(seed, last), vocab_size)
    order[list(last)] = order.min()  # no token follows itself by habit: texts would get stuck on it
    gumbel: npt.NDArray[np.float64] = -np.log(-np.log(order))
    return gumbel


def _digest(seed: int, tokens: ListLike[int]) -> int:
    state = (seed * _GOLDEN + len(tokens)) & _MASK
    for token in tokens:
        state = ((state ^ (token + 1)) * _GOLDEN) & _MASK
        state ^= state >> 29
    return state


def _uniforms(state: int, count: int) -> npt.NDArray[np.float64]:
    """Numbers in (0, 1) by splitmix64 from this state."""
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    uniforms: npt.NDArray[np.float64] = (z.astype(np.float64) + 0.5) * 2.0**-53
    return uniforms


class UnhurriedEngine(PrefixEngine):
    """As slow as a small model: a draft pays, and an answer is not over before the hub has opened its session."""

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        time.sleep(0.005)
        return super().forward(seq, tokens, positions, tree_mask, logits_rows)
