"""The torch engine: the reference that every other engine is compared with. It runs the very module that the exporter
traces.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

import numpy as np
import torch

from starsd_edge.runtime.engine import EngineSpec, Step
from starsd_edge.runtime.kv_engine import EngineSequence, KvEngine, PassRows
from starsd_edge.runtime.torch_model import TargetGraph, head_width


@dataclass(eq=False)
class TorchSequence(EngineSequence):
    """KV rows of one sequence: per layer [S, H_kv, D]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    new_keys: list[torch.Tensor] = field(default_factory=list)
    new_values: list[torch.Tensor] = field(default_factory=list)


class TorchEngine(KvEngine[TorchSequence]):
    """An engine over a `TargetGraph`."""

    def __init__(self, graph: TargetGraph, spec: EngineSpec) -> None:
        super().__init__(spec, TorchSequence)
        self._graph = graph
        config = graph.model.config
        self._layers = range(config.num_hidden_layers)
        self._row = (config.num_key_value_heads, head_width(config))
        self._dtype = getattr(torch, spec.kv_dtype)

    def _open(self, capacity: int) -> TorchSequence:
        return TorchSequence(capacity, self._no_rows(), self._no_rows())

    def _run(self, seq: TorchSequence, rows: PassRows) -> Step:
        with torch.inference_mode():
            logits, features, seq.new_keys, seq.new_values = self._graph(
                torch.from_numpy(np.ascontiguousarray(rows.tokens, np.int64)),
                torch.from_numpy(np.ascontiguousarray(rows.positions, np.int64)),
                torch.from_numpy(np.ascontiguousarray(rows.tree_mask, np.bool_)),
                torch.tensor(list(rows.wanted), dtype=torch.int64),
                seq.keys,
                seq.values,
            )
        return Step(logits.numpy(), features.numpy())

    def _keep(self, seq: TorchSequence, rows: ListLike[int]) -> None:
        kept = torch.tensor(list(rows), dtype=torch.int64)
        seq.keys = [torch.cat((past, new[kept])) for past, new in zip(seq.keys, seq.new_keys, strict=True)]
        seq.values = [torch.cat((past, new[kept])) for past, new in zip(seq.values, seq.new_values, strict=True)]

    def _copy(self, source: TorchSequence, length: int, target: TorchSequence) -> None:
        target.keys, target.values = ([rows[:length] for rows in held] for held in (source.keys, source.values))

    def _forget(self, seq: TorchSequence, length: int) -> None:
        seq.keys = [rows[:length] for rows in seq.keys]
        seq.values = [rows[:length] for rows in seq.values]

    def _no_rows(self) -> list[torch.Tensor]:
        return [torch.zeros((0, *self._row), dtype=self._dtype) for _ in self._layers]
