"""int8 for a head on the CPU: weights with a scale for each column of outputs, activations with one for each row.

The blocks that target graphs are stored in (`starsd_export.int8`) cost the same for every row of a pass. Here a pass
over 32 rows takes 8 times as long as one over a single row, because the processor's integer dot products need no scales
within a sum. A scale for each row, and not one for the whole pass as in ONNX's own dynamic quantisation: rows of
several targets share a pass, and what one of them sends must not change what the others get, not even by a bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir

from starsd_export.int8 import constant_matrix, drop_unused, initializer, linear_weight

_LARGEST = 127
_OFFSET = 128
_LEAST_SCALE = 1e-30
"""Stands in for the scale of a row of zeros."""
_DOMAIN = "com.microsoft"


def quantise_by_row(model: onnx_ir.Model) -> int:
    """Replace the linear layers of a graph in place.

    Returns:
        The number of matrices replaced.
    """
    quantiser = _Quantiser(model.graph)
    found = [(node, weight) for node in list(model.graph) if (weight := _weight(node)) is not None]
    for node, weight in found:
        quantiser.replace(node, weight)
    drop_unused(model.graph)
    model.opset_imports[_DOMAIN] = 1
    return len(found)


def quantise_columns(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """float32 [N, K] -> int8 [K, N] and float32 scales [N]."""
    scales = np.abs(weight).max(axis=1) / _LARGEST
    steps = np.divide(weight, scales[:, None], out=np.zeros_like(weight), where=scales[:, None] > 0)
    return np.ascontiguousarray(np.rint(steps).astype(np.int8).T), scales.astype(np.float32)


def _weight(node: onnx_ir.Node) -> npt.NDArray[np.float32] | None:
    """The [N, K] weight of y = x W^T + b, if that is what the node is."""
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 and len(node.inputs) == 3:
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        return constant_matrix(node.inputs[1]) if factors == [1.0, 1.0] else None
    return linear_weight(node)


class _Quantiser:
    """Puts nodes into one graph; layers that read the same values share their quantisation."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._graph = graph
        self._axis = initializer(graph, "row_axis", np.array([-1], np.int64))
        self._least = initializer(graph, "least_scale", np.array(_LEAST_SCALE, np.float32))
        self._step = initializer(graph, "row_step", np.array(1 / _LARGEST, np.float32))
        self._zero = initializer(graph, "row_zero", np.array(_OFFSET, np.uint8))
        self._weight_zero = initializer(graph, "weight_zero", np.array(0, np.int8))
        self._rows: dict[str | None, tuple[onnx_ir.Value, onnx_ir.Value]] = {}

    def replace(self, node: onnx_ir.Node, weight: npt.NDArray[np.float32]) -> None:
        """One layer y = x W^T by its int8 form."""
        name = node.inputs[1].name if node.inputs[1] is not None else node.name
        packed, scales = quantise_columns(np.ascontiguousarray(weight, np.float32))
        rows, largest = self._quantised(node)
        operands = [
            rows,
            initializer(self._graph, f"{name}_int8", packed),
            self._step,
            initializer(self._graph, f"{name}_scales", scales),
            self._zero,
            self._weight_zero,
        ]
        product = onnx_ir.node("MatMulIntegerToFloat", operands, domain=_DOMAIN, name=f"{node.name}_int8")
        scaled = onnx_ir.node("Mul", [product.outputs[0], largest], name=f"{node.name}_scaled")
        nodes = [product, scaled]
        if len(node.inputs) == 3:  # a bias
            nodes.append(onnx_ir.node("Add", [scaled.outputs[0], node.inputs[2]], name=f"{node.name}_with_bias"))
        onnx_ir.convenience.replace_nodes_and_values(self._graph, node, [node], nodes, node.outputs, nodes[-1].outputs)

    def _quantised(self, node: onnx_ir.Node) -> tuple[onnx_ir.Value, onnx_ir.Value]:
        """What goes into a layer as uint8, and the greatest of each row."""
        given = node.inputs[0]
        if given is None:
            raise RuntimeError(f"the layer {node.name} has no input")
        if given.name not in self._rows:
            absolute = onnx_ir.node("Abs", [given])
            greatest = onnx_ir.node("ReduceMax", [absolute.outputs[0], self._axis], {"keepdims": 1})
            scale = onnx_ir.node("Max", [greatest.outputs[0], self._least])
            share = onnx_ir.node("Div", [given, scale.outputs[0]])
            steps = onnx_ir.node("QuantizeLinear", [share.outputs[0], self._step, self._zero])
            self._graph.insert_before(node, [absolute, greatest, scale, share, steps])
            self._rows[given.name] = (steps.outputs[0], scale.outputs[0])
        return self._rows[given.name]
