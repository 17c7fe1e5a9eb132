"""Matrices of a traced graph as integers: int8 for the CPU, and blocks of int8 and int4 for TensorRT.

`quantise_weights` serves target graphs on the CPU: blocks of 32 weights with one scale each, which ONNX Runtime's
`MatMulNBits` multiplies without unpacking them. Symmetric: a block is its scale times integers of -127..127, stored
with an offset of 128. The embedding keeps its float32 rows.

`quantise_by_row` serves heads on the CPU: weights with a scale for each column of outputs, activations with one for
each row. Blocks cost the same for every row of a pass; here a pass over 32 rows takes 8 times as long as one over a
single row, because the processor's integer dot products need no scales within a sum. A scale for each row, and not one
for the whole pass as in ONNX's own dynamic quantisation: rows of several targets share a pass, and what one of them
sends must not change what the others get, not even by a bit.

`quantise_graph` serves TensorRT: a matrix is the product of a blocked `DequantizeLinear`, which engines fold into the
multiplication and ONNX Runtime computes as it stands. Rows of an embedding are taken from such a product as well:
TensorRT takes stored integers from nowhere else. Where the output head is tied to it, both read the one that there is.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir

from starsd_export.quantising.stored import StoredMatrices, StoredMatrix

BLOCK = 32
"""Weights that share a scale in `MatMulNBits`."""
_LARGEST, _OFFSET = 127, 128
_INT8_ACTIVATIONS = 4
"""`accuracy_level`: activations are quantised to int8 too, which the CPU multiplies fastest."""
_LEAST_SCALE = 1e-30
"""Stands in for the scale of a row of zeros."""
_DOMAIN = "com.microsoft"
_STORED = {8: np.int8, 4: ml_dtypes.int4}

Floats = npt.NDArray[np.float32]


def quantise_weights(model: onnx_ir.Model) -> None:
    """Replace the linear layers of a target's graph by their int8 form, in place."""
    for node in list(model.graph):
        weight = _linear_weight(node)
        if weight is not None:
            _replace_by_blocks(model.graph, node, weight)
    drop_unused(model.graph)
    model.opset_imports[_DOMAIN] = 1


def quantise_by_row(model: onnx_ir.Model) -> None:
    """Replace the linear layers of a head's graph by their int8 form, in place."""
    quantiser = _RowQuantiser(model.graph)
    found = [(node, weight) for node in list(model.graph) if (weight := _linear_weight(node, bias=True)) is not None]
    for node, weight in found:
        quantiser.replace(node, weight)
    drop_unused(model.graph)
    model.opset_imports[_DOMAIN] = 1


def quantise_graph(model: onnx_ir.Model, stored: StoredMatrices) -> int:
    """Replace the matrices of a float16 graph in place by what they are stored as.

    Args:
        model: traced from the model that `quantise_model` gave its weights.

    Returns:
        The number of products and embeddings replaced.
    """
    replaced, matrices = 0, dict[StoredMatrix, onnx_ir.Value]()
    for node in list(model.graph):
        weight = _linear_weight(node)
        rows = constant_matrix(node.inputs[0]) if weight is None and node.op_type == "Gather" else weight
        # What fuses the features of an EAGLE-3 head is float32, and the head knows it by its digest.
        matrix = None if rows is None else stored.find(rows)
        if matrix is not None:
            _replace_stored(model.graph, node, matrix, matrices)
            replaced += 1
    drop_unused(model.graph)
    return replaced


def quantise_block(weight: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """float32 [N, K] -> uint8 [N, K / BLOCK, BLOCK] and float32 scales [N * K / BLOCK].

    Raises:
        ValueError: K is not a multiple of BLOCK.
    """
    rows, width = weight.shape
    if width % BLOCK:
        raise ValueError(f"a width of {width} is not a multiple of {BLOCK}")
    steps, scales = _rounded(weight.reshape(rows, width // BLOCK, BLOCK))
    return (steps + _OFFSET).astype(np.uint8), scales.reshape(-1)


def _rounded(weight: Floats) -> tuple[Floats, Floats]:
    """Whole numbers of -127..127, and the scales of the last axis that they are multiplied with."""
    scales = np.abs(weight).max(axis=-1) / _LARGEST
    steps = np.divide(weight, scales[..., None], out=np.zeros_like(weight), where=scales[..., None] > 0)
    return np.rint(steps), scales.astype(np.float32)


def _linear_weight(node: onnx_ir.Node, *, bias: bool = False) -> Floats | None:
    """The [N, K] weight of y = x W^T, if that is what the node is.

    Args:
        bias: y = x W^T + b is taken, too.
    """
    if node.op_type == "MatMul":
        matrix = constant_matrix(node.inputs[1])
        return None if matrix is None else matrix.T
    if node.op_type != "Gemm" or node.attributes.get_int("transB", 0) != 1:
        return None
    if len(node.inputs) == 2:
        return constant_matrix(node.inputs[1])
    is_plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    return constant_matrix(node.inputs[1]) if bias and is_plain else None


def constant_matrix(value: onnx_ir.Value | None) -> Floats | None:
    """A matrix that is stored in the graph."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    array = value.const_value.numpy()
    return array if array.ndim == 2 else None


def initializer(graph: onnx_ir.Graph, name: str, array: npt.NDArray[np.generic]) -> onnx_ir.Value:
    """Store an array in the graph."""
    value = onnx_ir.val(name, const_value=onnx_ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def drop_unused(graph: onnx_ir.Graph) -> None:
    """Forget what is stored in the graph for no node."""
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]


def _replace_by_blocks(graph: onnx_ir.Graph, node: onnx_ir.Node, weight: Floats) -> None:
    packed, scales = quantise_block(np.ascontiguousarray(weight, np.float32))
    right = node.inputs[1]
    name = f"{right.name if right is not None else node.name}_int8"
    operands = [initializer(graph, name, packed), initializer(graph, f"{name}_scales", scales)]
    product = onnx_ir.node(
        "MatMulNBits",
        [node.inputs[0], *operands],
        {
            "N": weight.shape[0],
            "K": weight.shape[1],
            "bits": 8,
            "block_size": BLOCK,
            "accuracy_level": _INT8_ACTIVATIONS,
        },
        domain=_DOMAIN,
        name=f"{node.name}_int8",
    )
    onnx_ir.convenience.replace_nodes_and_values(graph, node, [node], [product], node.outputs, product.outputs)


class _RowQuantiser:
    """Puts nodes into one graph; layers that read the same values share their quantisation."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._graph = graph
        self._axis = initializer(graph, "row_axis", np.array([-1], np.int64))
        self._least = initializer(graph, "least_scale", np.array(_LEAST_SCALE, np.float32))
        self._step = initializer(graph, "row_step", np.array(1 / _LARGEST, np.float32))
        self._zero = initializer(graph, "row_zero", np.array(_OFFSET, np.uint8))
        self._weight_zero = initializer(graph, "weight_zero", np.array(0, np.int8))
        self._rows: dict[str | None, tuple[onnx_ir.Value, onnx_ir.Value]] = {}

    def replace(self, node: onnx_ir.Node, weight: Floats) -> None:
        """One layer y = x W^T by its int8 form."""
        name = node.inputs[1].name if node.inputs[1] is not None else node.name
        steps, scales = _rounded(np.ascontiguousarray(weight, np.float32))
        packed = np.ascontiguousarray(steps.astype(np.int8).T)
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


def _replace_stored(
    graph: onnx_ir.Graph, node: onnx_ir.Node, matrix: StoredMatrix, matrices: dict[StoredMatrix, onnx_ir.Value]
) -> None:
    made = [] if matrix in matrices else [_dequantised(graph, matrix, f"matrix_{len(matrices)}")]
    for dequantised in made:
        matrices[matrix] = dequantised.outputs[0]
    weights = matrices[matrix]
    made += _rows_of(node, weights) if node.op_type == "Gather" else [_product(node, weights)]
    onnx_ir.convenience.replace_nodes_and_values(graph, node, [node], made, node.outputs, made[-1].outputs)


def _dequantised(graph: onnx_ir.Graph, matrix: StoredMatrix, name: str) -> onnx_ir.Node:
    """float16 [K, N]: blocks run along the first axis."""
    steps = np.ascontiguousarray(matrix.steps.T).astype(_STORED[matrix.bits])
    operands = [
        initializer(graph, f"{name}_int{matrix.bits}", steps),
        initializer(graph, f"{name}_scales", np.ascontiguousarray(matrix.scales.T)),
    ]
    return onnx_ir.node("DequantizeLinear", operands, {"axis": 0, "block_size": matrix.size}, name=name)


def _product(node: onnx_ir.Node, weights: onnx_ir.Value) -> onnx_ir.Node:
    return onnx_ir.node("MatMul", [node.inputs[0], weights], name=f"{node.name}_blocks")


def _rows_of(node: onnx_ir.Node, weights: onnx_ir.Value) -> list[onnx_ir.Node]:
    """Rows of [N, K] from [K, N]: its columns, with the axes in the order that the rows had."""
    ids = node.inputs[1]
    if ids is None or ids.shape is None:
        raise RuntimeError(f"the exporter left the ids of {node.name!r} without a shape")
    taken = onnx_ir.node("Gather", [weights, ids], {"axis": 1}, name=f"{node.name}_columns")
    axes = [*range(1, ids.shape.rank() + 1), 0]
    return [taken, onnx_ir.node("Transpose", taken.outputs, {"perm": axes}, name=f"{node.name}_rows")]
