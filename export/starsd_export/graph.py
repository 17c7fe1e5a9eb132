"""From a transformers model to the ONNX graph of a bundle (`append` strategy): `TargetGraph`, traced and simplified."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir
import onnx_ir.passes.common as passes
import torch
from onnxscript import optimizer
from onnxscript.rewriter import pattern, rewrite
from transformers import PreTrainedModel

from starsd_edge.runtime.onnx_engine import graph_inputs, graph_outputs
from starsd_edge.runtime.torch_features import FusedStates
from starsd_edge.runtime.torch_model import TargetGraph, head_width
from starsd_export.repeated_layers import trace_layers

OPSET = 18
"""The `append` strategy needs nothing newer, and TensorRT 10.3 reads up to 20."""
_MAX_PAST = 1 << 20
# Every dynamic dimension is traced at 2 or more: 0 and 1 would be baked in.
_TRACED = {"tokens": 5, "past": 6, "rows": 3}


def trace(
    model: PreTrainedModel,
    kv_dtype: str,
    fused: FusedStates | None = None,
    *,
    module: type[TargetGraph] = TargetGraph,
) -> onnx_ir.Model:
    """The model as an ONNX graph with the weights that it has.

    Args:
        model: in evaluation mode.
        kv_dtype: "float16" or "float32".
        fused: what makes its features, see `TargetGraph`.
        module: what makes a graph of it.
    """
    graph = module(model, fused)
    config = model.config

    def of(layers: int) -> onnx_ir.Model:
        arguments = _arguments(layers, config.num_key_value_heads, head_width(config), getattr(torch, kv_dtype))
        return to_onnx(graph, arguments, _dynamic_shapes(layers), graph_inputs(layers), graph_outputs(layers))

    traced = trace_layers(model, of, whole=fused is not None)
    name_dimensions(traced)
    return simplify(traced)


def to_onnx(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    dynamic_shapes: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int = OPSET,
    translations: Mapping[Any, Callable[..., Any]] | None = None,
) -> onnx_ir.Model:
    """Trace a module, quietly: the tracer tells users about libraries that this program does not need.

    Args:
        translations: ONNX functions of torch operators that the exporter does not know.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, arguments, dynamic_shapes=dynamic_shapes, strict=False)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            custom_translation_table=dict(translations or {}),
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
            optimize=False,
        )
    if exported is None:
        raise RuntimeError("torch.onnx.export gave no program")
    traced: onnx_ir.Model = exported.model
    return traced


def simplify(model: onnx_ir.Model) -> onnx_ir.Model:
    """Fold constants, drop what is left over, and write x * (1 / s) as x / s: runtimes recognise the RMSNorm written
    that way, and run it as one node. (The exporter's own optimiser tries some hundred patterns that our models do not
    have, for longer than the trace itself takes.)
    """
    optimizer.fold_constants(model)
    for tidy in (passes.IdentityEliminationPass(), passes.CommonSubexpressionEliminationPass()):
        tidy(model)
    division = pattern.RewriteRule(lambda op, x, s: op.Mul(x, op.Reciprocal(s)), lambda op, x, s: op.Div(x, s))
    simplified: onnx_ir.Model = rewrite(model, pattern_rewrite_rules=[division])
    passes.RemoveUnusedNodesPass()(simplified)
    # The tracer notes the source line of every node, with this machine's paths.
    passes.ClearMetadataAndDocStringPass()(simplified)
    return simplified


def _arguments(layers: int, kv_heads: int, head_dim: int, kv_dtype: torch.dtype) -> tuple[Any, ...]:
    tokens, past, rows = (_TRACED[name] for name in ("tokens", "past", "rows"))

    def cache() -> list[torch.Tensor]:
        return [torch.zeros(past, kv_heads, head_dim, dtype=kv_dtype) for _ in range(layers)]

    return (
        torch.arange(tokens),
        torch.arange(tokens) + past,
        torch.ones(tokens, tokens, dtype=torch.bool).tril(),
        torch.arange(rows),
        cache(),
        cache(),
    )


def _dynamic_shapes(layers: int) -> tuple[Any, ...]:
    free = torch.export.Dim.DYNAMIC
    # One name for the past of all layers: as many free dimensions as inputs make the tracer compare each with each.
    past = torch.export.Dim("past", min=2, max=_MAX_PAST)
    caches = [{0: past}] * layers
    return ({0: free}, {0: free}, {0: free, 1: free}, {0: free}, caches, caches)


def name_dimensions(model: onnx_ir.Model) -> None:
    """Readable names for the dynamic dimensions of inputs and outputs; the tracer's own are arbitrary."""
    first = {
        "input_ids": "tokens",
        "position_ids": "tokens",
        "tree_mask": "tokens",
        "logits_idx": "rows",
        "logits": "rows",
        "features": "tokens",
    }
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name is None or value.shape is None:
            raise RuntimeError(f"the exporter left {value.name!r} without a name or a shape")
        if value.shape.is_static():
            continue
        name = first.get(value.name, "past" if value.name.startswith("past_") else "tokens")
        value.shape[0] = onnx_ir.SymbolicDim(name)
        if value.name == "tree_mask":
            value.shape[1] = onnx_ir.SymbolicDim(name)
