"""Weights of an exported graph: which nodes are linear layers, and putting other tensors in their place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir


def linear_weight(node: onnx_ir.Node) -> npt.NDArray[np.floating] | None:
    """The [N, K] weight of y = x W^T, if that is what the node is."""
    if node.op_type == "MatMul":
        matrix = _constant(node.inputs[1])
        return None if matrix is None else matrix.T
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 and len(node.inputs) == 2:
        return _constant(node.inputs[1])
    return None


def _constant(value: onnx_ir.Value | None) -> npt.NDArray[np.floating] | None:
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    array = value.const_value.numpy()
    return array if array.ndim == 2 else None


def add_initializer(graph: onnx_ir.Graph, name: str, array: npt.NDArray[np.generic]) -> onnx_ir.Value:
    """A new constant of the graph."""
    value = onnx_ir.val(name, const_value=onnx_ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def drop_unused(graph: onnx_ir.Graph) -> None:
    """Remove the constants that no node reads."""
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]
