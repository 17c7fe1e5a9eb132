"""Rows of a session: the true tokens (and features) that a target sends to the hub."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.protocol.features import NO_FEATURES, all_finite, row_bytes, write_features
from starsd_edge.protocol.messages import MAX_ROWS, MAX_TENSOR_BYTES, Tensor


@dataclass(frozen=True)
class NewRows:
    """True tokens that a session gained, in order, without gaps.

    Attributes:
        session: key of the session, unique while the hub lives.
        first_row: index of the first of these rows; equals the rows that the receiver already has.
        ids: row i carries the token at position i + 1.
        features: float16 [len(ids), F] for drafters that want them, else None.
    """

    session: int
    first_row: int
    ids: Sequence[int]
    features: npt.NDArray[np.float16] | None = None


_ID_BYTES = 5
"""Most bytes that a token id takes on the wire."""
FIRST_CAPACITY = 256
"""Rows of features that there is room for at first. The room is doubled whenever it is full, so that a row is copied a
constant number of times.
"""


class SentRows:
    """Token ids and, where the target offers them, float16 features [F] of every row, in growable buffers."""

    def __init__(self, feature_width: int) -> None:
        """`feature_width`: F, or 0 to keep no features."""
        self._ids = array("i")
        self._width = feature_width
        self._features = np.empty((FIRST_CAPACITY, feature_width), dtype="<f2")
        self.clamped = 0
        """Rows with a feature that was not finite."""

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, ids: Sequence[int], features: npt.NDArray[np.float16] | None) -> None:
        """Keep rows.

        A feature that is not finite (float16 overflows in some models) is kept as the nearest finite value: the hub
        would refuse it, and it makes no text wrong; but drafts are weak with it, so the row is counted.

        Raises:
            ValueError: features are kept and those given are missing or not [len(ids), F].
        """
        if self._width:
            shape = None if features is None else features.shape
            if features is None or shape != (len(ids), self._width):
                raise ValueError(f"{len(ids)} rows need features of shape {(len(ids), self._width)}, not {shape}")
            start = len(self._ids)
            kept = self._room(start, len(ids))
            kept[:] = features
            if not all_finite(kept):
                self.clamped += int((~np.isfinite(kept)).any(axis=1).sum())
                np.nan_to_num(kept, copy=False)
        self._ids.extend(ids)

    def chunk_end(self, start: int, stop: int, codec: str, most_bytes: int = MAX_TENSOR_BYTES) -> int:
        """Where a message that begins at row `start` has to end, at `stop` at the latest, to stay within the wire's
        caps with features in this codec, and within `most_bytes` of them unless a single row has more.
        """
        size = row_bytes(codec, self._width)
        return min(stop, start + (min(MAX_ROWS, max(1, most_bytes // size)) if size else MAX_ROWS))

    def sent_bytes(self, rows: int, codec: str) -> int:
        """About how many bytes this many rows take on the wire."""
        return rows * (row_bytes(codec, self._width) + _ID_BYTES)

    def ids(self, start: int, stop: int) -> list[int]:
        """Ids of these rows."""
        return self._ids[start:stop].tolist()

    def features(self, start: int, stop: int, codec: str) -> Tensor | None:
        """Features of these rows as they travel; None for no rows, or where none are wanted. Perhaps a view: encode it
        before the next `append`.
        """
        if start == stop or codec == NO_FEATURES:
            return None
        return write_features(self._features[start:stop], codec)

    def _room(self, start: int, rows: int) -> npt.NDArray[np.float16]:
        capacity = len(self._features)
        if start + rows > capacity:
            while capacity < start + rows:
                capacity *= 2
            grown = np.empty((capacity, self._width), dtype="<f2")
            grown[:start] = self._features[:start]
            self._features = grown
        return self._features[start : start + rows]
