"""The `append` graph for TensorRT: the module that CPUs get, with float16 weights and float32 where it must be.

A strongly typed engine computes in the types that stand in the graph. Matrices, residual stream and KV are float16;
RoPE, the softmax and (as transformers has it) RMSNorm are float32 inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir
import torch
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from starsd_edge.runtime.torch_features import FusedStates
from starsd_edge.runtime.torch_model import OUT_OF_SIGHT, TargetGraph
from starsd_export.graph import trace

HALF_ATTENTION = "starsd_append_half"


def trace_half(model: PreTrainedModel, fused: FusedStates | None = None) -> onnx_ir.Model:
    """The model as an `append` graph with float16 weights and KV.

    Args:
        model: float32, in evaluation mode. Its weights are rounded to float16 where they are.
        fused: what makes its features, in float32 as it is.
    """
    with halved(model):
        return trace(model, "float16", fused, module=HalfTargetGraph)


class HalfTargetGraph(TargetGraph):
    """`TargetGraph` of a model that `halved` has in hand."""

    def __init__(self, model: PreTrainedModel, fused: FusedStates | None = None) -> None:
        super().__init__(model, fused)
        ALL_ATTENTION_FUNCTIONS.register(HALF_ATTENTION, softmax_attention)
        model.set_attn_implementation(HALF_ATTENTION)


@contextmanager
def halved(model: PreTrainedModel) -> Iterator[None]:
    """float16 parameters inside the block; after it float32 again, with the values that float16 has.

    Buffers stay as they are: in float16 RoPE's frequencies would be others.
    """
    tables = model.base_model.rotary_emb
    _set_type(model, torch.float16)
    model.base_model.rotary_emb = _WideRotary(tables)
    try:
        yield
    finally:
        model.base_model.rotary_emb = tables
        _set_type(model, torch.float32)


def _set_type(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """New parameters in the place of the old ones, which a graph that was traced still holds; ties stay ties."""
    made = WeakTensorKeyDictionary()  # an id alone could be that of a parameter that is gone
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in made:
                made[parameter] = torch.nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            setattr(module, name, made[parameter])


class _WideRotary(torch.nn.Module):  # type: ignore[misc]
    """transformers rounds cosines and sines to the type of the hidden states; here Q and K are rotated in float32."""

    def __init__(self, tables: torch.nn.Module) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return self.tables(hidden.float(), position_ids)


def softmax_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over grouped heads in the form that GPU runtimes fuse: product, softmax in float32, product.

    Args:
        query: [1, H, T, D], float16 or (rotated) float32.
        key, value: [H_kv, S + T, D], values that float16 has.
        attention_mask: bool [1, 1, T, S + T], True where a row sees a column.

    Returns:
        float16 [1, T, H, D].
    """
    _, heads, rows, width = query.shape
    kv_heads, columns, _ = key.shape
    group = heads // kv_heads
    # Scaled before it is rounded, so that the products stay small.
    grouped = (query * scaling).to(torch.float16).contiguous().view(kv_heads, group * rows, width)
    scores = torch.matmul(grouped, key.to(torch.float16).transpose(1, 2)).view(kv_heads, group, rows, columns)
    seen = torch.where(attention_mask, scores.float(), OUT_OF_SIGHT)
    weights = torch.softmax(seen, dim=-1).to(torch.float16).view(kv_heads, group * rows, columns)
    mixed = torch.matmul(weights, value.to(torch.float16))
    return mixed.reshape(1, heads, rows, width).transpose(1, 2), None
