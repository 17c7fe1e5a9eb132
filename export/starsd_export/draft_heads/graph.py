"""From a head in torch to the ONNX graph that `OnnxHeadEngine` runs."""

from __future__ import annotations

import onnx_ir
import torch

from starsd_edge.heads.onnx_engine import INPUTS, OUTPUTS
from starsd_edge.heads.torch_engine import run_head
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.graph import simplify, to_onnx
from starsd_export.int8 import quantise_weights

# Every dynamic dimension is traced at 2 or more: 0 and 1 would be baked in.
_ROWS, _PAST, _WANTED = 5, 6, 3


class _HeadGraph(torch.nn.Module):  # type: ignore[misc]
    """`run_head` as a module, for the tracer."""

    def __init__(self, head: TorchHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """In the order of `INPUTS`, and out in that of `OUTPUTS`."""
        return run_head(self.head, *inputs)


def trace_head(head: TorchHead, *, int8: bool) -> onnx_ir.Model:
    """The graph of a float32 head.

    Args:
        int8: store the matrices in blocks of 8-bit integers, as `export --weights int8` does.
    """
    spec = head.spec
    past = torch.zeros(_PAST, spec.n_kv_heads, spec.head_dim)
    arguments = (
        torch.zeros(_ROWS, spec.hidden_size),
        torch.zeros(_ROWS, spec.hidden_size),
        torch.arange(_ROWS),
        past,
        past.clone(),
        torch.ones(_ROWS, _PAST + _ROWS, dtype=torch.bool),
        torch.arange(_WANTED),
    )
    free = torch.export.Dim.DYNAMIC
    shapes = ({0: free}, {0: free}, {0: free}, {0: free}, {0: free}, {0: free, 1: free}, {0: free})
    model = simplify(to_onnx(_HeadGraph(head), arguments, (shapes,), INPUTS, OUTPUTS))
    if int8:
        quantise_weights(model)
    return model
