"""The graphs for TensorRT in float16, traced from transformers' model: `append`, and `inplace` with caches of a fixed
size.

A strongly typed engine computes in the types that stand in the graph. Matrices, residual stream and KV are float16;
RoPE, the softmax and (as transformers has it) RMSNorm are float32 inside.

In an `inplace` graph (opset 24) `TensorScatter` writes the new rows at `past_len` into a cache that comes in and goes
out at one address; `Attention` reads all of the cache under a mask that leaves only the committed rows and the node's
own ancestors. Neither operator can be written in torch, so both are operators of ours that the exporter translates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir
import torch
from onnxscript.values import Opset
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from starsd_edge.runtime.torch_features import FusedStates
from starsd_edge.runtime.torch_model import OUT_OF_SIGHT, TargetGraph, head_width, run_layers
from starsd_export.graph import name_dimensions, simplify, to_onnx, trace
from starsd_export.repeated_layers import trace_layers


def trace_half(model: PreTrainedModel, fused: FusedStates | None = None) -> onnx_ir.Model:
    """The model as an `append` graph with float16 weights and KV.

    Args:
        model: float32, in evaluation mode. Its weights are rounded to float16 where they are.
        fused: what makes its features, in float32 as it is.
    """
    with halved(model):
        return trace(model, "float16", fused, module=HalfTargetGraph)


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


class HalfTargetGraph(TargetGraph):
    """`TargetGraph` of a model that `halved` has in hand."""

    attention = ("starsd_append_half", softmax_attention)


INPLACE_OPSET = 24
_TRACED_TOKENS, _TRACED_ROWS = 5, 3  # 2 or more: 0 and 1 would be baked in
_ONNX = Opset("", INPLACE_OPSET)
_ROWS_AXIS = 2
_OUT_OF_SIGHT = torch.finfo(torch.float16).min


def trace_inplace(model: PreTrainedModel, capacity: int, fused: FusedStates | None = None) -> onnx_ir.Model:
    """The model as an `inplace` graph with float16 weights and KV.

    Args:
        model: float32, in evaluation mode. Its weights are rounded to float16 where they are.
        capacity: rows C of every cache.
        fused: what makes its features; None gives the hidden state after the final norm.
    """
    config = model.config
    shape = (1, config.num_key_value_heads, capacity, head_width(config))

    # Each a tensor of its own: the tracer takes one that comes twice for one input.
    ids, positions = torch.arange(_TRACED_TOKENS), torch.arange(_TRACED_TOKENS)
    mask = torch.ones(_TRACED_TOKENS, _TRACED_TOKENS, dtype=torch.bool).tril()
    arguments = (ids, positions, mask, torch.zeros(1, dtype=torch.int64), torch.arange(_TRACED_ROWS))
    free = torch.export.Dim.DYNAMIC
    shapes = ({0: free}, {0: free}, {0: free, 1: free}, None, {0: free})
    translations: dict[Any, Callable[..., Any]] = {
        torch.ops.starsd.kv_update.default: _scatter,
        torch.ops.starsd.masked_attention.default: _attend,
    }
    graph = InplaceTargetGraph(model, fused)

    def of(layers: int) -> onnx_ir.Model:
        keys, values = ([torch.zeros(shape, dtype=torch.float16) for _ in range(layers)] for _ in "kv")
        given, fixed = (*arguments, keys, values), [None] * layers
        names = inplace_inputs(layers), inplace_outputs(layers)
        return to_onnx(graph, given, (*shapes, fixed, fixed), *names, INPLACE_OPSET, translations)

    with halved(model):
        traced = trace_layers(model, of, whole=fused is not None)
    name_dimensions(traced)
    return simplify(traced)


def inplace_inputs(layers: int) -> list[str]:
    """Names of the graph's inputs, in order."""
    past = [f"past_{kind}_{layer}" for kind in "kv" for layer in range(layers)]
    return ["input_ids", "position_ids", "tree_mask", "past_len", "logits_idx", *past]


def inplace_outputs(layers: int) -> list[str]:
    """Names of the graph's outputs, in order; `present_*` lies where `past_*` of the same layer lies."""
    return ["logits", "features", *(f"present_{kind}_{layer}" for kind in "kv" for layer in range(layers))]


@torch.library.custom_op("starsd::kv_update", mutates_args=())  # type: ignore[untyped-decorator]
def kv_update(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The cache [1, H_kv, C, D] with rows [1, H_kv, T, D] in the place of those from `start` [1] on."""
    first = int(start[0])
    written = cache.clone()
    written[:, :, first : first + rows.shape[2]] = rows
    return written


@kv_update.register_fake  # type: ignore[untyped-decorator]
def _(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache)


@torch.library.custom_op("starsd::masked_attention", mutates_args=())  # type: ignore[untyped-decorator]
def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """[1, H, T, D] of grouped heads over [1, H_kv, C, D], scores and float16 mask [T, C] added up."""
    attended: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return attended


@masked_attention.register_fake  # type: ignore[untyped-decorator]
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
    return torch.empty_like(query)


def _scatter(cache: Any, rows: Any, start: Any) -> Any:
    return _ONNX.TensorScatter(cache, rows, start, axis=_ROWS_AXIS, mode="linear")


def _attend(query: Any, key: Any, value: Any, mask: Any, scaling: float) -> Any:
    # TensorRT takes no `softmax_precision`.
    attended, *_ = _ONNX.Attention(query, key, value, mask, scale=scaling)
    attended.producer().resize_outputs(1)  # TensorRT refuses a node that names the others
    return attended


class InplaceCache(Cache):  # type: ignore[misc]
    """Caches with a fixed number of rows; every layer reads all of its own after its new rows are written."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], past_len: torch.Tensor) -> None:
        super().__init__(layers=[DynamicLayer() for _ in keys])
        self.keys, self.values, self.past_len = keys, values, past_len
        self.present_keys: list[torch.Tensor] = []
        self.present_values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, H_kv, T, D] in, the whole cache [1, H_kv, C, D] out, float16."""
        self.present_keys.append(self._written(self.keys[layer_idx], key_states))
        self.present_values.append(self._written(self.values[layer_idx], value_states))
        return self.present_keys[-1], self.present_values[-1]

    def _written(self, cache: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        written: torch.Tensor = torch.ops.starsd.kv_update(cache, states.to(cache.dtype), self.past_len)
        return written


def _inplace_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    attended = torch.ops.starsd.masked_attention(query.to(key.dtype), key, value, attention_mask[0, 0], scaling)
    return attended.transpose(1, 2), None


class InplaceTargetGraph(TargetGraph):
    """A causal language model of transformers over caches of a fixed size."""

    attention = ("starsd_inplace", _inplace_attention)

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        tree_mask: torch.Tensor,
        past_len: torch.Tensor,
        logits_idx: torch.Tensor,
        past_keys: list[torch.Tensor],
        past_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """One pass of T new tokens over `past_len` committed ones.

        Args:
            input_ids, position_ids: int64 [T].
            tree_mask: bool [T, T].
            past_len: int64 [1].
            logits_idx: int64 [R].
            past_keys, past_values: per layer float16 [1, H_kv, C, D].

        Returns:
            logits float32 [R, V], features float16 [T, F], the caches with the new rows in them.
        """
        cache = InplaceCache(past_keys, past_values, past_len)
        shown = _full_mask(tree_mask, past_len, past_keys[0].shape[_ROWS_AXIS])
        # Added and not chosen by: TensorRT-RTX 1.7 builds no attention of some capacities under a bool mask. No row is
        # without a column that it sees.
        mask = torch.where(shown, 0.0, _OUT_OF_SIGHT).to(torch.float16)
        logits, features = run_layers(
            self.model, self.fused, input_ids, position_ids, mask[None, None], cache, logits_idx
        )
        return logits, features, cache.present_keys, cache.present_values


def _full_mask(tree_mask: torch.Tensor, past_len: torch.Tensor, capacity: int) -> torch.Tensor:
    """bool [T, C]: every committed row, and of the new ones those that the tree's own mask shows."""
    node = torch.arange(capacity) - past_len
    last = tree_mask.shape[0] - 1
    shown = tree_mask.index_select(1, node.clamp(min=0).clamp(max=last))
    return (node < 0) | (shown & ((node >= 0) & (node <= last)))
