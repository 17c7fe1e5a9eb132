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
from starsd_edge.runtime.engine import EngineSpec, Step
from starsd_edge.runtime.kv_engine import EngineSequence, KvEngine, PassRows

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


@dataclass(eq=False)
class _ReplaySequence(EngineSequence):
    """What of a sequence decides how it goes on.

    Attributes:
        tokens: those that are committed.
        last: the tokens of the last pass.
    """

    tokens: list[int] = field(default_factory=list)
    last: npt.NDArray[np.int64] | None = None


class ReplayEngine(KvEngine[_ReplaySequence]):
    """An engine that replays recorded texts in the time of a modelled device.

    Args:
        texts: recorded texts of one target, at least one; a sequence follows the one that begins as it does.
        source: the target whose texts they are.
        device: how long passes take; None for no time at all.
    """

    def __init__(self, texts: ListLike[Trace], source: TraceSource, device: ReplayDevice | None = None) -> None:
        self._texts = texts
        self._device = device
        spec = EngineSpec(
            vocab_size=source.vocab_size,
            feature_kind=source.feature_kind,
            feature_width=texts[0].features.shape[1],
            max_context=source.max_context,
            max_tree=MAX_TREE,
            max_chunk=MAX_CHUNK,
            kv_dtype="float16",
            exact_trees=True,
            source_fp=source.source_fp,
        )
        super().__init__(spec, _ReplaySequence)

    def _open(self, capacity: int) -> _ReplaySequence:
        return _ReplaySequence(capacity)

    def _require_pass(self, seq: _ReplaySequence, rows: PassRows) -> None:
        if int(rows.tokens.max()) >= self._spec.vocab_size:
            raise EngineError(f"a pass with a token id outside the vocabulary of {self._spec.vocab_size}")

    def _run(self, seq: _ReplaySequence, rows: PassRows) -> Step:
        """Returns when the modelled device would."""
        began = self._device.pacer.begin() if self._device else 0.0
        text = self._text([*seq.tokens, *rows.tokens.tolist()])
        following = self._following(text.ids, rows, _on_text(text.ids, seq, rows))
        # Pages of zeros that nobody reads are never made, and the sampler reads the rows it visits alone.
        logits = np.zeros((len(rows.wanted), self._spec.vocab_size), dtype=np.float32)
        for index, row in enumerate(rows.wanted):
            logits[index, following[row]] = _CERTAIN
        features = text.features[np.minimum(rows.positions, len(text.features) - 1)]
        seq.last = rows.tokens.copy()
        if self._device:
            self._device.pacer.end(began, self._device.passes.draw_s(rows.count, self._device.uniform()))
        return Step(logits, features)

    def _keep(self, seq: _ReplaySequence, rows: ListLike[int]) -> None:
        assert seq.last is not None  # noqa: S101 (rows are committed after a pass alone)
        seq.tokens.extend(seq.last[list(rows)].tolist())

    def _copy(self, source: _ReplaySequence, length: int, target: _ReplaySequence) -> None:
        target.tokens = source.tokens[:length]

    def _forget(self, seq: _ReplaySequence, length: int) -> None:
        del seq.tokens[length:]

    def _text(self, tokens: ListLike[int]) -> Trace:
        """The text that begins as these tokens do, as far as any does."""
        if len(self._texts) == 1:
            return self._texts[0]
        return max(self._texts, key=lambda each: _agreed(each.ids, tokens))

    def _following(
        self, ids: npt.NDArray[np.int64], rows: PassRows, on_text: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """int64 [T]: the token after each row."""
        beside = (rows.tokens * _SPREAD + rows.positions) % self._spec.vocab_size
        known = on_text & (rows.positions + 1 < len(ids))
        return np.where(known, ids[np.where(known, rows.positions + 1, 0)], beside)


def _agreed(ids: npt.NDArray[np.int64], tokens: ListLike[int]) -> int:
    """How many of these tokens a text begins with."""
    length = min(len(ids), len(tokens))
    differs = np.flatnonzero(ids[:length] != np.asarray(tokens[:length]))
    return int(differs[0]) if len(differs) else length


def _on_text(ids: npt.NDArray[np.int64], seq: _ReplaySequence, rows: PassRows) -> npt.NDArray[np.bool_]:
    """bool [T]: rows that, like all that they see, are the recorded text."""
    if _agreed(ids, seq.tokens) < seq.length:
        return np.zeros(rows.count, dtype=np.bool_)
    within = rows.positions < len(ids)
    same = within & (ids[np.where(within, rows.positions, 0)] == rows.tokens)
    on_text: npt.NDArray[np.bool_] = ~(rows.tree_mask & ~same).any(axis=1)
    return on_text
