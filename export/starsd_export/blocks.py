"""Weight-only int8 and int4 for TensorRT: matrices in blocks along their inputs, one float16 scale each.

In the graph a matrix is the product of a blocked `DequantizeLinear`, which engines fold into the multiplication and
ONNX Runtime computes as it stands. Rows of an embedding are taken from such a product as well: TensorRT takes stored
integers from nowhere else. Where the output head is tied to it, both read the one that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir
from transformers import PreTrainedModel

from starsd_export.int8 import constant_matrix, drop_unused, initializer, linear_weight
from starsd_export.quantising.channel_scales import PARTS, linear_parts
from starsd_export.quantising.layers import quantise_layers, set_weight
from starsd_export.quantising.stored import StoredMatrices, StoredMatrix, quantise

BITS = {"int8": 8, "int4": 4}
_STORED = {8: np.int8, 4: ml_dtypes.int4}
_FLOAT16 = 16


@dataclass(frozen=True)
class Blocks:
    """How weights are stored.

    Attributes:
        bits: 16 (float16), 8 or 4, of the linear layers of the model's layers.
        size: inputs in a block.
        head_bits: 16, 8 or 4, of the output head.
        embedding_bits: 16 or 8, of the embedding.
        wide: parts of the layers that have 8 bits where the others have 4.
    """

    bits: int
    size: int
    head_bits: int = _FLOAT16
    embedding_bits: int = _FLOAT16
    wide: frozenset[str] = frozenset()

    def by_part(self) -> dict[str, int]:
        """Bits of each part of a layer."""
        return {part: max(self.bits, 8) if part in self.wide else self.bits for part in PARTS}


@dataclass(frozen=True)
class Search:
    """What int4 is searched on.

    Attributes:
        texts: token ids, all of one length.
        progress: called with the layers done and all of them.
    """

    texts: Sequence[Sequence[int]]
    progress: Callable[[int, int], None] = field(default=lambda done, layers: None)


def quantise_model(model: PreTrainedModel, blocks: Blocks, search: Search | None = None) -> StoredMatrices:
    """Give a model the weights that its quantised graph is to have, where they are.

    Args:
        model: float32, in evaluation mode.
        search: None rounds every weight by itself.

    Returns:
        How they are stored, for `quantise_graph`.

    Raises:
        UsageError: blocks of this size do not fill a matrix.
    """
    stored = StoredMatrices()
    _quantise_ends(model, blocks, stored)
    if search is not None and blocks.bits in _STORED:
        quantise_layers(model, blocks.by_part(), blocks.size, search.texts, stored, search.progress)
        return stored
    for part, linear in linear_parts(model):
        if (bits := blocks.by_part()[part]) in _STORED:
            set_weight(linear, stored.add(quantise(_half(linear.weight), bits, blocks.size)))
    return stored


def quantise_graph(model: onnx_ir.Model, stored: StoredMatrices) -> int:
    """Replace the matrices of a float16 graph in place by what they are stored as.

    Args:
        model: traced from the model that `quantise_model` gave its weights.

    Returns:
        The number of products and embeddings replaced.
    """
    replaced, matrices = 0, dict[StoredMatrix, onnx_ir.Value]()
    for node in list(model.graph):
        weight = linear_weight(node)
        rows = constant_matrix(node.inputs[0]) if weight is None and node.op_type == "Gather" else weight
        # What fuses the features of an EAGLE-3 head is float32, and the head knows it by its digest.
        matrix = None if rows is None else stored.find(rows)
        if matrix is not None:
            _replace(model.graph, node, matrix, matrices)
            replaced += 1
    drop_unused(model.graph)
    return replaced


def _quantise_ends(model: PreTrainedModel, blocks: Blocks, stored: StoredMatrices) -> None:
    """The embedding and the output head; they stay tied only where both are stored alike."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows, columns, tied = _half(embedding.weight), _half(head.weight), head.weight is embedding.weight
    if blocks.embedding_bits in _STORED:
        set_weight(embedding, stored.add(quantise(rows, blocks.embedding_bits, blocks.size)))
    if tied and blocks.head_bits == blocks.embedding_bits:
        head.weight = embedding.weight
    elif blocks.head_bits in _STORED:
        set_weight(head, stored.add(quantise(columns, blocks.head_bits, blocks.size)))


def _half(weight: object) -> npt.NDArray[np.float16]:
    return weight.detach().half().numpy()  # type: ignore[attr-defined,no-any-return]


def _replace(
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
