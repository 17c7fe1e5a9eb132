"""Weight-only int8 for the CPU: every matrix of a linear layer in blocks of 32 with one scale each.

ONNX Runtime's `MatMulNBits` multiplies such a matrix without unpacking it. Symmetric: a block is its scale times
integers of -127..127, stored with an offset of 128. The embedding keeps its float32 rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir

BLOCK = 32
_BITS = 8
_OFFSET = 128
_LARGEST = 127
_INT8_ACTIVATIONS = 4
"""`accuracy_level`: activations are quantised to int8 too, which the CPU multiplies fastest."""
_DOMAIN = "com.microsoft"


def quantise_weights(model: onnx_ir.Model) -> int:
    """Replace the linear layers of a graph in place.

    Returns:
        The number of matrices replaced.
    """
    replaced = 0
    for node in list(model.graph):
        weight = linear_weight(node)
        if weight is not None:
            _replace(model.graph, node, weight)
            replaced += 1
    drop_unused(model.graph)
    model.opset_imports[_DOMAIN] = 1
    return replaced


def quantise_block(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """float32 [N, K] -> uint8 [N, K / BLOCK, BLOCK] and float32 scales [N * K / BLOCK].

    Raises:
        ValueError: K is not a multiple of BLOCK.
    """
    rows, width = weight.shape
    if width % BLOCK:
        raise ValueError(f"a width of {width} is not a multiple of {BLOCK}")
    blocks = weight.reshape(rows, width // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=2) / _LARGEST
    steps = np.divide(blocks, scales[..., None], out=np.zeros_like(blocks), where=scales[..., None] > 0)
    return (np.rint(steps) + _OFFSET).astype(np.uint8), scales.astype(np.float32).reshape(-1)


def linear_weight(node: onnx_ir.Node) -> npt.NDArray[np.float32] | None:
    """The [N, K] weight of y = x W^T, if that is what the node is."""
    if node.op_type == "MatMul":
        matrix = constant_matrix(node.inputs[1])
        return None if matrix is None else matrix.T
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 and len(node.inputs) == 2:
        return constant_matrix(node.inputs[1])
    return None


def constant_matrix(value: onnx_ir.Value | None) -> npt.NDArray[np.float32] | None:
    """A matrix that is stored in the graph."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    array = value.const_value.numpy()
    return array if array.ndim == 2 else None


def _replace(graph: onnx_ir.Graph, node: onnx_ir.Node, weight: npt.NDArray[np.float32]) -> None:
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
            "bits": _BITS,
            "block_size": BLOCK,
            "accuracy_level": _INT8_ACTIVATIONS,
        },
        domain=_DOMAIN,
        name=f"{node.name}_int8",
    )
    onnx_ir.convenience.replace_nodes_and_values(graph, node, [node], [product], node.outputs, product.outputs)


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
