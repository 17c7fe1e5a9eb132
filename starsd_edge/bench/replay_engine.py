"""The engine of the timing backend: it replays a recorded text and takes the time of a modelled device.

Along the recorded text the logits choose the recorded tokens and the features are the recorded ones; beside it every
token is followed by one that depends on it and its position. So an answer to the recorded prompt is the recorded one,
whatever is drafted, and all that surrounds the model (decode loop, sampling, link, hub) runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from starsd_edge.bench.device_times import ModelPassTimes, Pacer
from starsd_edge.bench.trace import Trace, TraceSource
from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import (
    EngineSpec,
    Sequence,
    Step,
    require_capacity,
    require_committed,
    require_pending,
)

MAX_TREE = 64
"""Most rows of one verify pass, the root included."""
MAX_CHUNK = 128
"""Most prompt tokens in one pass."""
_CERTAIN = np.float32(50.0)
"""Logit of the token that follows; all others have 0. At any usual temperature another token has a probability of about
exp(-50), which is never drawn.
"""
_SPREAD = 7919
"""Factor from a token to the one that follows it where the recorded text was left: a prime, so that these tokens do not
soon repeat.
"""


@dataclass(frozen=True)
class ReplayDevice:
    """The modelled times of one device, whose passes follow one another.

    Attributes:
        passes: seconds of a pass by its rows.
        pacer: makes passes take these times on a real clock.
        uniform: a random number in [0, 1) for each pass.
    """

    passes: ModelPassTimes
    pacer: Pacer
    uniform: Callable[[], float]


@dataclass
class _ReplaySequence:
    """Committed tokens as far as they matter: how many, how many of them the recorded text begins with, the last."""

    limit: int
    tokens: list[int] = field(default_factory=list)
    agreed: int = 0
    pending: npt.NDArray[np.int64] | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def capacity(self) -> int:
        return self.limit


class ReplayEngine:
    """An engine that replays a recorded text in the time of a modelled device.

    Args:
        trace: the recorded text.
        source: the target whose text it is.
        device: how long passes take; None for no time at all.
    """

    def __init__(self, trace: Trace, source: TraceSource, device: ReplayDevice | None = None) -> None:
        self._ids = trace.ids
        self._features = trace.features
        self._device = device
        self._spec = EngineSpec(
            vocab_size=source.vocab_size,
            feature_kind=source.feature_kind,
            feature_width=trace.features.shape[1],
            max_context=source.max_context,
            max_tree=MAX_TREE,
            max_chunk=MAX_CHUNK,
            kv_dtype="float16",
            exact_trees=True,
            source_fp=source.source_fp,
        )

    @property
    def spec(self) -> EngineSpec:
        """See `Engine`."""
        return self._spec

    def open(self, capacity: int) -> Sequence:
        """See `Engine`."""
        require_capacity(self._spec, capacity)
        return _ReplaySequence(capacity)

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """See `Engine`. Returns when the modelled device would."""
        assert isinstance(seq, _ReplaySequence)  # noqa: S101 (the engine's own)
        rows = len(tokens)
        if rows > max(MAX_TREE, MAX_CHUNK) or int(tokens.max()) >= self._spec.vocab_size:
            raise EngineError(f"a pass over {rows} rows, or with an id outside the vocabulary: at most {MAX_CHUNK}")
        began = self._device.pacer.begin() if self._device else 0.0
        on_text = self._on_text(seq, tokens, positions, tree_mask)
        following = self._following(tokens, positions, on_text)
        wanted = range(rows) if logits_rows is None else logits_rows
        # Pages of zeros that nobody reads are never made, and the sampler reads the rows it visits alone.
        logits = np.zeros((len(wanted), self._spec.vocab_size), dtype=np.float32)
        for index, row in enumerate(wanted):
            logits[index, following[row]] = _CERTAIN
        features = self._features[np.minimum(positions, len(self._features) - 1)]
        seq.pending = tokens.copy()
        if self._device:
            duration_s = self._device.passes.draw_s(rows, self._device.uniform())
            self._device.pacer.end(began, duration_s)
        return Step(logits, features)

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """See `Engine`."""
        assert isinstance(seq, _ReplaySequence)  # noqa: S101 (the engine's own)
        require_pending(seq, 0 if seq.pending is None else len(seq.pending), rows)
        assert seq.pending is not None  # noqa: S101 (just asked for)
        for token in seq.pending[list(rows)].tolist():
            at = len(seq.tokens)
            if seq.agreed == at < len(self._ids) and self._ids[at] == token:
                seq.agreed += 1
            seq.tokens.append(token)
        seq.pending = None

    def truncate(self, seq: Sequence, length: int) -> None:
        """See `Engine`."""
        assert isinstance(seq, _ReplaySequence)  # noqa: S101 (the engine's own)
        require_committed(seq, length)
        del seq.tokens[length:]
        seq.agreed = min(seq.agreed, length)
        seq.pending = None

    def _on_text(
        self,
        seq: _ReplaySequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """bool [T]: rows that, like all that they see, are the recorded text."""
        if seq.agreed < seq.length:
            return np.zeros(len(tokens), dtype=np.bool_)
        within = positions < len(self._ids)
        same = within & (self._ids[np.where(within, positions, 0)] == tokens)
        on_text: npt.NDArray[np.bool_] = ~(tree_mask & ~same).any(axis=1)
        return on_text

    def _following(
        self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], on_text: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """int64 [T]: the token after each row."""
        beside = (tokens * _SPREAD + positions) % self._spec.vocab_size
        known = on_text & (positions + 1 < len(self._ids))
        return np.where(known, self._ids[np.where(known, positions + 1, 0)], beside)
