"""Weight-only int8 and int4 for TensorRT: linear layers in blocks along their inputs, one float16 scale each.

Symmetric: a weight is its block's scale times an integer (-127..127, or -8..7), zero is zero. In the graph a matrix is
the product of a blocked `DequantizeLinear`, which engines fold into the multiplication and ONNX Runtime computes as it
stands. The embedding keeps its float16 rows, and so does the output head unless it is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir
import torch
from transformers import PreTrainedModel

from starsd_edge.errors import UsageError
from starsd_export.int8 import drop_unused, initializer, linear_weight

BITS = {"int8": 8, "int4": 4}
BLOCK_SIZES = (32, 64, 128)
_STORED = {8: np.int8, 4: ml_dtypes.int4}
_RANGE = {8: (-127, 127), 4: (-8, 7)}
# A block's largest weight over these gives the scales that are tried; the one with the least squared error stays. Eight
# bits have no need of it.
_DIVISORS = {8: (127.0,), 4: (6.5, 7.0, 7.5, 8.0, 8.5, 9.0)}
_SMALLEST_SCALE = float(np.finfo(np.float16).smallest_normal)
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Blocks:
    """How weights are stored.

    Attributes:
        bits: 8 or 4, of the linear layers of the model's layers.
        size: inputs in a block.
        head_bits: 16 (float16), 8 or 4, of the output head.
    """

    bits: int
    size: int
    head_bits: int = 16


def quantise(
    weight: npt.NDArray[np.floating], bits: int, size: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Weights [N, K] as int8 [N, K] (values of `bits` bits) and float16 scales [N, K / size].

    Raises:
        UsageError: blocks of this size do not fill K.
    """
    rows, width = weight.shape
    if width % size:
        fitting = [str(other) for other in BLOCK_SIZES if width % other == 0]
        advice = f"use --block {' or '.join(fitting)}" if fitting else "use --weights fp16"
        raise UsageError(f"blocks of {size} do not fill a matrix with {width} inputs: {advice}")
    steps = np.empty((rows, width), np.int8)
    scales = np.empty((rows, width // size), np.float16)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        blocks = weight[part].astype(np.float32).reshape(-1, width // size, size)
        found, scales[part] = _best(blocks, bits)
        steps[part] = found.reshape(-1, width)
    return steps, scales


def dequantise(steps: npt.NDArray[np.int8], scales: npt.NDArray[np.float16], size: int) -> npt.NDArray[np.float16]:
    """The weights [N, K] that a graph multiplies with."""
    blocks = steps.reshape(len(steps), -1, size).astype(np.float32) * scales[..., None].astype(np.float32)
    return blocks.reshape(steps.shape).astype(np.float16)


def quantise_graph(model: onnx_ir.Model, blocks: Blocks) -> int:
    """Replace the linear layers of a float16 graph in place.

    Returns:
        The number of matrices replaced.

    Raises:
        UsageError: blocks of this size do not fill a matrix.
    """
    replaced = 0
    head = _head(model.graph)
    for node in list(model.graph):
        weight = linear_weight(node)
        bits = blocks.head_bits if node is head else blocks.bits
        # What fuses the features of an EAGLE-3 head is float32, and the head knows it by its digest.
        if weight is not None and weight.dtype == np.float16 and bits in _STORED:
            _replace(model.graph, node, weight, bits, blocks.size)
            replaced += 1
    drop_unused(model.graph)
    return replaced


def quantise_model(model: PreTrainedModel, blocks: Blocks) -> None:
    """Give a model the weights that its quantised graph has, where they are: what that graph has to compute."""
    head = model.get_output_embeddings()
    for module in model.modules():
        bits = blocks.head_bits if module is head else blocks.bits
        if isinstance(module, torch.nn.Linear) and bits in _STORED:
            weight = module.weight.detach().to(torch.float16).numpy()
            rounded = dequantise(*quantise(weight, bits, blocks.size), blocks.size)
            # A new one: the embedding may be tied to the head, and keeps its rows.
            module.weight = torch.nn.Parameter(torch.from_numpy(rounded).to(module.weight.dtype), requires_grad=False)


def _best(blocks: npt.NDArray[np.float32], bits: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Integers and scales of blocks [N, B, size], by least squared error."""
    low, high = _RANGE[bits]
    largest = np.abs(blocks).max(axis=2)
    best_error = np.full(largest.shape, np.inf, np.float32)
    best_scales = np.zeros(largest.shape, np.float16)
    best_steps = np.zeros(blocks.shape, np.int8)
    for divisor in _DIVISORS[bits]:
        # A scale that float16 has none or few bits of would lose the block; zeros stay zeros with any scale.
        scales = np.maximum(largest / divisor, _SMALLEST_SCALE).astype(np.float16)
        wide = scales[..., None].astype(np.float32)
        steps = np.clip(np.rint(blocks / wide), low, high)
        error = np.square(steps * wide - blocks).sum(axis=2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scales = np.where(better, scales, best_scales)
        best_steps = np.where(better[..., None], steps, best_steps).astype(np.int8)
    return best_steps, best_scales


def _head(graph: onnx_ir.Graph) -> onnx_ir.Node | None:
    """The product with the output head: the last linear layer before the logits."""
    value: onnx_ir.Value | None = next(value for value in graph.outputs if value.name == "logits")
    while value is not None and (node := value.producer()) is not None:
        if linear_weight(node) is not None:
            return node
        value = node.inputs[0]
    return None


def _replace(graph: onnx_ir.Graph, node: onnx_ir.Node, weight: npt.NDArray[np.floating], bits: int, size: int) -> None:
    steps, scales = quantise(weight, bits, size)
    right = node.inputs[1]
    name = f"{right.name if right is not None else node.name}_int{bits}"
    stored = np.ascontiguousarray(steps.T).astype(_STORED[bits])
    operands = [
        initializer(graph, name, stored),
        initializer(graph, f"{name}_scales", np.ascontiguousarray(scales.T)),
    ]
    matrix = onnx_ir.node("DequantizeLinear", operands, {"axis": 0, "block_size": size}, name=f"{node.name}_weights")
    product = onnx_ir.node("MatMul", [node.inputs[0], matrix.outputs[0]], name=f"{node.name}_int{bits}")
    onnx_ir.convenience.replace_nodes_and_values(graph, node, [node], [matrix, product], node.outputs, product.outputs)
