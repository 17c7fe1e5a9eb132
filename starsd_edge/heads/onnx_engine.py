"""A head run by ONNX Runtime: for hubs without torch, and several times as fast on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from starsd_edge.heads.engine import Floats, HeadRows, HeadSpec, HeadStep

if TYPE_CHECKING:
    import onnxruntime

# The fields of `HeadRows` and `HeadStep` in their order, as the graph calls them; ids go in as their embeddings.
INPUTS = (
    "embedded",
    "features",
    "position_ids",
    "slots",
    "places",
    "past_keys",
    "past_values",
    "lengths",
    "late_keys",
    "late_values",
    "seen",
    "wanted",
)
OUTPUTS = ("predicted", "new_keys", "new_values", "tokens", "scores")


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
        self._embedding = np.asarray(embedding)  # numpy reads from its class of mapped arrays several times slower

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._spec

    @property
    def kv_bytes(self) -> int:
        """See `HeadEngine`."""
        return 4

    def zeros(self, *shape: int) -> Floats:
        """See `HeadEngine`."""
        return np.zeros(shape, dtype=np.float32)

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        _, *others = vars(rows).values()
        inputs = (self._embedding[rows.ids].astype(np.float32), *others)
        return HeadStep(*self._session.run(OUTPUTS, dict(zip(INPUTS, inputs, strict=True))))
