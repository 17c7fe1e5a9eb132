"""Weight-only int8 for the CPU: every matrix of a linear layer in blocks of 32 with one scale each.

ONNX Runtime's `MatMulNBits` multiplies such a matrix without unpacking it. Symmetric: a block is its scale times
integers of -127..127, stored with an offset of 128. The embedding keeps its float32 rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir

from starsd_export.graph_weights import add_initializer, drop_unused, linear_weight

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


def _replace(graph: onnx_ir.Graph, node: onnx_ir.Node, weight: npt.NDArray[np.float32]) -> None:
    packed, scales = quantise_block(np.ascontiguousarray(weight, np.float32))
    right = node.inputs[1]
    name = f"{right.name if right is not None else node.name}_int8"
    operands = [add_initializer(graph, name, packed), add_initializer(graph, f"{name}_scales", scales)]
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
