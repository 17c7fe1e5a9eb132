"""From a head in torch to the ONNX graph that `OnnxHeadEngine` runs."""

from __future__ import annotations

import onnx_ir
import torch

from starsd_edge.heads.engine import INPUTS, MOST_CANDIDATES, OUTPUTS
from starsd_edge.heads.torch_engine import log_probabilities, run_head
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.draft_heads.row_int8 import quantise_by_row
from starsd_export.graph import simplify, to_onnx

# Every dynamic dimension is traced at 2 or more: 0 and 1 would be baked in.
_LINES, _PLACES, _PAST, _GUESSES, _WANTED = 2, 5, 6, 3, 4


class _HeadGraph(torch.nn.Module):  # type: ignore[misc]
    """`run_head` and the candidates as a module, for the tracer."""

    def __init__(self, head: TorchHead, candidates: int) -> None:
        super().__init__()
        self.head = head
        self.count = min(candidates, head.spec.draft_vocab_size)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """In the order of `INPUTS`, and out in that of `OUTPUTS`."""
        predicted, keys, values, logits = run_head(self.head, *inputs)
        # ONNX says of TopK that it takes the lowest among equals.
        tokens = torch.topk(logits, self.count).indices
        return predicted, keys, values, tokens, log_probabilities(logits, tokens)


def trace_head(head: TorchHead, *, int8: bool, candidates: int = MOST_CANDIDATES) -> onnx_ir.Model:
    """The graph of a float32 head.

    Args:
        int8: store the matrices as 8-bit integers; see `row_int8`.
        candidates: given below each row.
    """
    spec = head.spec
    rows = _LINES * _PLACES - 1
    past = torch.zeros(_LINES, spec.n_kv_heads, _PAST, spec.head_dim)
    late = torch.zeros(_LINES, spec.n_kv_heads, _GUESSES, spec.head_dim)
    arguments = (
        torch.zeros(rows, spec.hidden_size),
        torch.zeros(rows, spec.hidden_size),
        torch.arange(rows),
        torch.arange(_LINES * _PLACES).clamp(max=rows - 1).view(_LINES, _PLACES),
        torch.arange(rows),
        past,
        past.clone(),
        torch.full((_LINES,), _PAST),
        late,
        late.clone(),
        torch.ones(_LINES, _PLACES, _GUESSES + _PLACES, dtype=torch.bool),
        torch.arange(_WANTED),
    )
    free = torch.export.Dim.DYNAMIC
    row, cache = {0: free}, {0: free, 2: free}
    by_place, sight = {0: free, 1: free}, {0: free, 1: free, 2: free}
    shapes = (row, row, row, by_place, row, cache, cache, row, cache, cache, sight, row)
    model = simplify(to_onnx(_HeadGraph(head, candidates), arguments, (shapes,), INPUTS, OUTPUTS))
    if int8:
        quantise_by_row(model)
    return model
