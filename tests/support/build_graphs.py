"""Small ONNX graphs for TensorRT's own parser and builder: one that is right, and ones that each have one fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

HALF, SINGLE, BOOL, LONG = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
Value = tuple[str, int, Sequence[int | str]]


def graph(nodes: Sequence[Any], inputs: Sequence[Value], outputs: Sequence[Value], opset: int = 24) -> ModelProto:
    """A model of ONNX's own operators, with `com.microsoft`'s at hand."""
    made = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def dynamic_sum() -> ModelProto:
    """What builds in an instant: y = x + x over a dynamic dimension."""
    return graph([helper.make_node("Add", ["x", "x"], ["y"])], [("x", HALF, ["n"])], [("y", HALF, ["n"])], 18)


def weights_in_blocks() -> ModelProto:
    """A product with int8 weights that have a scale for 32 of them."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scales"], ["wide"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    made = graph(nodes, [("x", HALF, [4, 64])], [("y", HALF, [4, 64])], 21)
    steps = np.arange(64 * 64, dtype=np.int64).reshape(64, 64) % 255 - 127
    made.graph.initializer.append(numpy_helper.from_array(steps.astype(np.int8), "w"))
    made.graph.initializer.append(numpy_helper.from_array(np.full((2, 64), 0.01, np.float16), "scales"))
    return made


def mixed_types() -> ModelProto:
    """float16 times float32."""
    inputs = [("x", HALF, [4]), ("y", SINGLE, [4])]
    return graph([helper.make_node("Mul", ["x", "y"], ["z"])], inputs, [("z", HALF, [4])], 18)


def unknown_operator() -> ModelProto:
    """An operator of ONNX Runtime's own."""
    node = helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft")
    return graph([node], [("x", HALF, [4, 4])], [("y", HALF, [4, 4])], 18)


def attention_with_cache() -> ModelProto:
    """Attention that keeps K and V itself."""
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"])
    new, past = [1, 2, 3, 8], [1, 2, 5, 8]
    inputs = [("q", HALF, new), ("k", HALF, new), ("v", HALF, new), ("pk", HALF, past), ("pv", HALF, past)]
    whole = [1, 2, 8, 8]
    return graph([node], inputs, [("y", HALF, new), ("nk", HALF, whole), ("nv", HALF, whole)])


def scatter(
    cache: Sequence[int | str] = (1, 2, 16, 8), update: Sequence[int | str] = (1, 2, 3, 8), mode: str = "linear"
) -> ModelProto:
    """A cache that new rows are written into."""
    node = helper.make_node("TensorScatter", ["cache", "rows", "at"], ["present"], axis=len(cache) - 2, mode=mode)
    inputs = [("cache", HALF, cache), ("rows", HALF, update), ("at", LONG, [1])]
    return graph([node], inputs, [("present", HALF, cache)])


def scatter_of_no_input() -> ModelProto:
    """The cache is computed, as one cut out of a stacked one would be."""
    nodes = [
        helper.make_node("Add", ["cache", "cache"], ["twice"]),
        helper.make_node("TensorScatter", ["twice", "rows", "at"], ["present"], axis=2, mode="linear"),
    ]
    shape = [1, 2, 16, 8]
    inputs = [("cache", HALF, shape), ("rows", HALF, [1, 2, 3, 8]), ("at", LONG, [1])]
    return graph(nodes, inputs, [("present", HALF, shape)])


def scatter_to_no_output() -> ModelProto:
    """The written cache stays inside."""
    nodes = [
        helper.make_node("TensorScatter", ["cache", "rows", "at"], ["present"], axis=2, mode="linear"),
        helper.make_node("Add", ["present", "present"], ["twice"]),
    ]
    shape = [1, 2, 16, 8]
    inputs = [("cache", HALF, shape), ("rows", HALF, [1, 2, 3, 8]), ("at", LONG, [1])]
    return graph(nodes, inputs, [("twice", HALF, shape)])


def write(model: ModelProto, directory: Path) -> Path:
    """The model as a file."""
    save(model, str(directory / "graph.onnx"))
    return directory / "graph.onnx"
