"""One sequence of an EAGLE head, and true rows for several of them at once.

K and V of true rows are computed from true features and are kept; those of draft tokens exist for one draft only.
Positions are those of the features: row i stands at i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import Floats, HeadEngine, HeadRows, HeadStep
from starsd_server.drafters.contract import SessionRefusedError
from starsd_server.drafters.dynamic_tree import Below
from starsd_server.drafters.eagle_lines import HeadKvRows, PastBatch, RowSlots, alike, own_rows_seen

_CHUNK = 256
"""Most true rows of one sequence in one pass of the head."""
_MOST_ROWS = 512
"""Most true rows of all sequences in one pass of the head: attention scores take memory for each row times all rows
before it.
"""
_FEW = 8
"""Rows up to which sequences share a pass whatever their numbers of rows. Sequences with more rows share one only with
those within a factor of two, so that little time goes into padding.
"""


class EagleSession:
    """One sequence of an EAGLE head.

    Attributes:
        first_row: index of the first row that it was given.
        store: its true rows.
        first: candidates below the last true row; none before there is a row.
        last: float32 [H], the head's feature after the last true row.
    """

    def __init__(self, engine: HeadEngine, first_row: int = 0) -> None:
        self.first_row = first_row
        self.store = HeadKvRows(engine)
        self.first: Below = []
        self.last = np.zeros(engine.spec.hidden_size, dtype=np.float32)


@dataclass
class HeadFeed:
    """True rows for a sequence: int64 [N] and float16 [N, H], and why it is lost, if it is."""

    session: EagleSession
    ids: npt.NDArray[np.int64]
    features: npt.NDArray[np.float16]
    taken: int = 0
    lost: SessionRefusedError | None = None

    def next_chunk(self, most: int) -> int:
        """Number of rows that go into the next pass, at most `most`."""
        return 0 if self.lost else min(most, len(self.ids) - self.taken)


class Extender:
    """Takes in true rows of several sequences together.

    Args:
        draft_ids: int64 [draft vocabulary], the target's id of each token of the head's vocabulary.
    """

    def __init__(self, engine: HeadEngine, draft_ids: npt.NDArray[np.int64], past_batch: PastBatch) -> None:
        self._engine = engine
        self._draft_ids = draft_ids
        self._past_batch = past_batch
        self._most = min(_CHUNK, max(1, engine.spec.max_positions // 2))

    def extend(self, feeds: Sequence[HeadFeed]) -> None:
        """Take in all rows, in chunks. A sequence whose features make the head overflow is lost, and no other."""
        while waiting := [feed for feed in feeds if feed.next_chunk(self._most)]:
            for feed in waiting:
                feed.session.store.make_room(feed.next_chunk(self._most))
            sizes: dict[int, list[HeadFeed]] = {}
            for feed in waiting:
                sizes.setdefault(max(_FEW, feed.next_chunk(self._most) - 1).bit_length(), []).append(feed)
            for members in sizes.values():
                for together in alike(members, lambda feed: feed.session.store.rows):
                    step = max(1, _MOST_ROWS // max(feed.next_chunk(self._most) for feed in together))
                    for start in range(0, len(together), step):
                        self._pass(together[start : start + step])

    def _pass(self, feeds: Sequence[HeadFeed]) -> None:
        counts = [feed.next_chunk(self._most) for feed in feeds]
        places = RowSlots.of(counts)
        step = self._run(feeds, counts, places)
        below = candidates(step, self._draft_ids)
        last = np.cumsum(counts) - 1
        for line, (feed, count, row) in enumerate(zip(feeds, counts, last.tolist(), strict=True)):
            session = feed.session
            ids = feed.ids[feed.taken : feed.taken + count]
            session.store.append(ids, step.keys[line][:, :count], step.values[line][:, :count])
            session.first = below[line]
            session.last = step.predicted[row].copy()
            feed.taken += count
            if not session.first:
                feed.lost = SessionRefusedError(
                    "the head overflows on the target's features: they are not of its model"
                )

    def _run(self, feeds: Sequence[HeadFeed], counts: Sequence[int], places: RowSlots) -> HeadStep:
        past = self._past_batch.gather([feed.session.store for feed in feeds])
        spec = self._engine.spec
        none = self._engine.zeros(len(feeds), spec.n_kv_heads, 0, spec.head_dim)
        chunks = [slice(feed.taken, feed.taken + count) for feed, count in zip(feeds, counts, strict=True)]
        starts = np.array([feed.session.store.next_position for feed in feeds], dtype=np.int64)
        rows = HeadRows(
            ids=np.concatenate([feed.ids[chunk] for feed, chunk in zip(feeds, chunks, strict=True)]),
            features=_float32([feed.features[chunk] for feed, chunk in zip(feeds, chunks, strict=True)]),
            positions=starts[places.lines] + places.within,
            slots=places.slots,
            places=places.places,
            keys=past.keys,
            values=past.values,
            lengths=past.lengths,
            late_keys=none,
            late_values=none,
            seen=own_rows_seen(places),
            wanted=np.cumsum(counts, dtype=np.int64) - 1,
        )
        return self._engine.forward(rows)


def candidates(step: HeadStep, draft_ids: npt.NDArray[np.int64]) -> list[Below]:
    """Candidates below each wanted row, as the target's ids; none where the head has overflowed."""
    finite = np.isfinite(step.scores.sum(axis=1)).tolist()
    found = zip(finite, draft_ids[step.tokens].tolist(), step.scores.tolist(), strict=True)
    return [list(zip(tokens, scores, strict=True)) if sound else [] for sound, tokens, scores in found]


def _float32(chunks: Sequence[npt.NDArray[np.float16]]) -> Floats:
    return np.concatenate(chunks).astype(np.float32)
