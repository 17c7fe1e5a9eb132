"""The ONNX Runtime engine for graphs with the KV strategy `inplace`: caches of a fixed size that each pass writes into.

Every cache is bound as input and as output at one address, so a pass costs no copy of it. The rows of a pass lie behind
the committed ones until the next pass overwrites them; a commit that keeps the first of them only counts them, another
moves them together.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import EngineError
from starsd_edge.runtime.engine import (
    EngineSpec,
    Sequence,
    Step,
    own_sequence,
    require_capacity,
    require_committed,
    require_pending,
    require_rows,
)
from starsd_edge.runtime.onnx_engine import PASS_OUTPUTS, graph_running, graph_spec, pass_feeds

if TYPE_CHECKING:
    import onnxruntime


@dataclass
class InplaceSequence:
    """One sequence's caches.

    Attributes:
        capacity: committed rows that it may hold.
        keys, values: per layer float16 [1, H_kv, C, D]; the first `length` rows are committed.
        pending: rows of the last pass that are still to be committed.
    """

    capacity: int
    keys: list[npt.NDArray[np.float16]]
    values: list[npt.NDArray[np.float16]]
    length: int = 0
    pending: int = 0

    @property
    def new_keys(self) -> list[npt.NDArray[np.float16]]:
        """Rows of the last pass, per layer [T, H_kv, D]."""
        return [self._rows(cache) for cache in self.keys]

    @property
    def new_values(self) -> list[npt.NDArray[np.float16]]:
        """Rows of the last pass, per layer [T, H_kv, D]."""
        return [self._rows(cache) for cache in self.values]

    def _rows(self, cache: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
        return np.swapaxes(cache[0, :, self.length : self.length + self.pending], 0, 1)


class OnnxInplaceEngine:
    """An engine over an ONNX Runtime session; use it from one thread at a time."""

    def __init__(self, session: onnxruntime.InferenceSession, manifest: Manifest, allow_inexact: bool = False) -> None:
        """Args:
        session: of the bundle's graph.
        manifest: the bundle's.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        """
        graph, model = manifest.graph, manifest.model
        if graph.kv_strategy != "inplace":
            raise EngineError(f"this engine runs graphs with the KV strategy inplace, not {graph.kv_strategy}")
        if graph.tensorrt is None or graph.tensorrt.capacity <= graph.max_tree:
            raise EngineError("the manifest names no caches that hold a tree and a context: export the bundle again")
        self._session = session
        self._layers = range(model.n_layers)
        self._shape = (1, model.n_kv_heads, graph.tensorrt.capacity, model.head_dim)
        room = min(model.max_context, graph.tensorrt.capacity - graph.max_tree)
        self._spec = graph_spec(manifest, room, allow_inexact)

    @property
    def spec(self) -> EngineSpec:
        """What this engine is."""
        return self._spec

    def open(self, capacity: int) -> InplaceSequence:
        """A new, empty sequence, its caches zero: rows out of sight weigh nothing, but nothing times NaN is NaN."""
        require_capacity(self._spec, capacity)
        keys = [np.zeros(self._shape, np.float16) for _ in self._layers]
        return InplaceSequence(capacity, keys, [np.zeros(self._shape, np.float16) for _ in self._layers])

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """See `Engine.forward`."""
        seq = own_sequence(seq, InplaceSequence)
        rows, capacity = len(tokens), self._shape[2]
        require_rows(self._spec, rows)
        if seq.length + rows > capacity:  # the runtime would write beyond the cache
            raise EngineError(f"a pass of {rows} tokens on {seq.length} committed ones does not fit {capacity} rows")
        seq.pending = 0
        feeds = pass_feeds(tokens, positions, tree_mask, logits_rows)
        step = self._run(seq, feeds | {"past_len": np.array([seq.length], np.int64)})
        seq.pending = rows
        return step

    def _run(self, seq: InplaceSequence, feeds: dict[str, npt.NDArray[np.generic]]) -> Step:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in PASS_OUTPUTS:
            binding.bind_output(name)
        for kind, caches in (("k", seq.keys), ("v", seq.values)):
            for layer, cache in enumerate(caches):
                place = ("cpu", 0, np.float16, self._shape, cache.ctypes.data)
                binding.bind_input(f"past_{kind}_{layer}", *place)
                binding.bind_output(f"present_{kind}_{layer}", *place)
        with graph_running():
            self._session.run_with_iobinding(binding)
        logits, features = (value.numpy() for value in binding.get_outputs()[: len(PASS_OUTPUTS)])
        return Step(logits, features)

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """See `Engine.commit`."""
        seq = own_sequence(seq, InplaceSequence)
        require_pending(seq, seq.pending, rows)
        if list(rows) != list(range(len(rows))):
            kept = seq.length + np.asarray(rows, np.int64)
            for cache in (*seq.keys, *seq.values):
                cache[:, :, seq.length : seq.length + len(rows)] = cache[:, :, kept]
        seq.length += len(rows)
        seq.pending = 0

    def truncate(self, seq: Sequence, length: int) -> None:
        """See `Engine.truncate`."""
        seq = own_sequence(seq, InplaceSequence)
        require_committed(seq, length)
        seq.length, seq.pending = length, 0
