"""A head run by ONNX Runtime: for hubs without torch, and several times as fast on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import HeadRows, HeadStep
from starsd_edge.heads.spec import HeadSpec

if TYPE_CHECKING:
    import onnxruntime

INPUTS = ("embedded", "features", "position_ids", "past_keys", "past_values", "mask", "logits_idx")
OUTPUTS = ("predicted", "new_keys", "new_values", "logits")


class OnnxHeadEngine:
    """See `HeadEngine`.

    Args:
        session: of the head's graph, whose inputs and outputs are `INPUTS` and `OUTPUTS`.
        embedding: float16 [V, H].
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, spec: HeadSpec, embedding: npt.NDArray[np.float16]
    ) -> None:
        self._session = session
        self._spec = spec
        self._embedding = embedding

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._spec

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        embedded = self._embedding[rows.ids].astype(np.float32)
        inputs = (embedded, rows.features, rows.positions, rows.keys, rows.values, rows.mask, rows.logits_rows)
        return HeadStep(*self._session.run(OUTPUTS, dict(zip(INPUTS, inputs, strict=True))))
