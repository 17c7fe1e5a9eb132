"""The torch engine: the reference that every other engine is compared with. It runs the very module that the exporter
traces.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.runtime.engine import (
    EngineSpec,
    Sequence,
    Step,
    own_sequence,
    require_capacity,
    require_committed,
    require_pending,
)
from starsd_edge.runtime.torch_model import TargetGraph, head_width


@dataclass
class TorchSequence:
    """KV rows of one sequence: per layer [S, H_kv, D]."""

    capacity: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    new_keys: list[torch.Tensor] = field(default_factory=list)
    new_values: list[torch.Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Committed rows."""
        return len(self.keys[0])


class TorchEngine:
    """An engine over a `TargetGraph`; use it from one thread at a time."""

    def __init__(self, graph: TargetGraph, spec: EngineSpec) -> None:
        self._graph = graph
        self._spec = spec
        config = graph.model.config
        self._layers = range(config.num_hidden_layers)
        self._row = (config.num_key_value_heads, head_width(config))
        self._dtype = getattr(torch, spec.kv_dtype)

    @property
    def spec(self) -> EngineSpec:
        """What this engine is."""
        return self._spec

    def open(self, capacity: int) -> TorchSequence:
        """See `Engine.open`."""
        require_capacity(self._spec, capacity)
        return TorchSequence(capacity, self._no_rows(), self._no_rows())

    def forward(
        self,
        seq: Sequence,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        tree_mask: npt.NDArray[np.bool_],
        logits_rows: ListLike[int] | None = None,
    ) -> Step:
        """See `Engine.forward`."""
        seq = own_sequence(seq, TorchSequence)
        wanted = range(len(tokens)) if logits_rows is None else logits_rows
        with torch.inference_mode():
            logits, features, seq.new_keys, seq.new_values = self._graph(
                torch.from_numpy(np.ascontiguousarray(tokens, np.int64)),
                torch.from_numpy(np.ascontiguousarray(positions, np.int64)),
                torch.from_numpy(np.ascontiguousarray(tree_mask, np.bool_)),
                torch.tensor(list(wanted), dtype=torch.int64),
                seq.keys,
                seq.values,
            )
        return Step(logits.numpy(), features.numpy())

    def commit(self, seq: Sequence, rows: ListLike[int]) -> None:
        """See `Engine.commit`."""
        seq = own_sequence(seq, TorchSequence)
        require_pending(seq, len(seq.new_keys[0]) if seq.new_keys else 0, rows)
        kept = torch.tensor(list(rows), dtype=torch.int64)
        seq.keys = [torch.cat((past, new[kept])) for past, new in zip(seq.keys, seq.new_keys, strict=True)]
        seq.values = [torch.cat((past, new[kept])) for past, new in zip(seq.values, seq.new_values, strict=True)]
        seq.new_keys, seq.new_values = [], []

    def truncate(self, seq: Sequence, length: int) -> None:
        """See `Engine.truncate`."""
        seq = own_sequence(seq, TorchSequence)
        require_committed(seq, length)
        seq.keys = [rows[:length] for rows in seq.keys]
        seq.values = [rows[:length] for rows in seq.values]
        seq.new_keys, seq.new_values = [], []

    def _no_rows(self) -> list[torch.Tensor]:
        return [torch.zeros((0, *self._row), dtype=self._dtype) for _ in self._layers]
