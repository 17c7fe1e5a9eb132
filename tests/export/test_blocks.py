"""Weights in blocks for TensorRT: what is stored, and what a graph multiplies with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir
import pytest

from starsd_edge.errors import UsageError
from starsd_export.quantised_graph import initializer, quantise_graph
from starsd_export.quantising.stored import StoredMatrices, StoredMatrix, quantise

SIZE = 32


def weights(seed: int = 0, rows: int = 6, blocks: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, blocks * SIZE)).astype(np.float32)


def stored_weight(weight: np.ndarray, bits: int, importance: np.ndarray | None = None) -> np.ndarray:
    return quantise(weight, bits, SIZE, importance).weight().astype(np.float32)


@pytest.mark.parametrize(("bits", "low", "high"), [(8, -127, 127), (4, -8, 7)])
def test_integers_keep_to_their_bits_and_scales_are_positive(bits: int, low: int, high: int) -> None:
    matrix = quantise(weights(), bits, SIZE)
    assert (matrix.steps.shape, matrix.scales.shape) == ((6, 3 * SIZE), (6, 3))
    assert low <= matrix.steps.min() < 0 < matrix.steps.max() <= high
    assert (matrix.scales > 0).all()


def test_int8_is_within_half_a_step_of_each_blocks_own_scale() -> None:
    weight = weights()
    weight[2, SIZE:] *= 100
    matrix = quantise(weight, 8, SIZE)
    error = np.abs(matrix.weight().astype(np.float32) - weight).reshape(6, 3, SIZE)
    steps = matrix.scales[..., None].astype(np.float32)
    assert (error <= 0.55 * steps + np.abs(weight).reshape(6, 3, SIZE) * 1e-3).all()


def test_int4_scales_are_better_than_those_of_the_largest_weight() -> None:
    weight = weights(rows=64)
    found = stored_weight(weight, 4)
    plain_scales = np.abs(weight).reshape(64, 3, SIZE).max(axis=2) / 7
    plain = np.rint(weight.reshape(64, 3, SIZE) / plain_scales[..., None]) * plain_scales[..., None]
    squares = [np.mean((values.reshape(weight.shape) - weight) ** 2) for values in (found, plain)]
    assert squares[0] < 0.95 * squares[1]


def test_scales_serve_the_inputs_that_count() -> None:
    weight, importance = weights(rows=64), np.ones(3 * SIZE)
    importance[::4] = 100
    plain, weighted = ((stored_weight(weight, 4, counts) - weight) ** 2 for counts in (None, importance))
    assert weighted[:, ::4].sum() < 0.9 * plain[:, ::4].sum()


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros_and_nothing_else_becomes_infinite(bits: int) -> None:
    weight = np.zeros((2, 2 * SIZE), np.float32)
    weight[1, :SIZE] = 1e-9  # below what float16 has a scale for
    weight[1, SIZE] = 6e4
    found = quantise(weight, bits, SIZE).weight()
    assert np.array_equal(found[0], np.zeros(2 * SIZE))
    assert np.isfinite(found).all()
    assert found[1, SIZE] == pytest.approx(6e4, rel=0.15)
    assert np.abs(found[1, :SIZE]).max() < 1e-4


def test_stored_matrices_are_found_by_their_own_weights_alone() -> None:
    stored = StoredMatrices()
    matrix = quantise(weights(), 4, SIZE)
    made = stored.add(matrix)
    other = made.copy()
    other[3, 7] += 0.5
    assert stored.find(np.asfortranarray(made)) is matrix
    assert stored.find(other) is None
    assert stored.find(made.reshape(3, -1)) is None
    assert stored.find(made.astype(np.float32)) is None


def test_blocks_that_do_not_fill_a_matrix_are_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"blocks of 64 do not fill a matrix with 96 inputs: use --block 32$"):
        quantise(np.zeros((2, 96), np.float32), 4, 64)
    with pytest.raises(UsageError, match="do not fill a matrix with 50 inputs: use --weights fp16"):
        quantise(np.zeros((2, 50), np.float32), 8, 32)


def test_every_product_keeps_its_own_matrix_whoever_else_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that are made when they are asked for may lie where one that is gone lay: all of them, at worst."""
    stored, found = StoredMatrices(), StoredMatrices.find
    made = [stored.add(quantise(weights(seed, rows=2, blocks=1), 8, SIZE)) for seed in range(16)]
    graph = onnx_ir.Graph([onnx_ir.val("x", onnx_ir.DataType.FLOAT16, [1, SIZE])], [], nodes=[])
    for number, weight in enumerate(made):
        matrix = initializer(graph, f"w{number}", np.ascontiguousarray(weight.T))
        graph.append(onnx_ir.node("MatMul", [graph.inputs[0], matrix]))

    def copied(matrices: StoredMatrices, weight: np.ndarray) -> StoredMatrix | None:
        matrix = found(matrices, weight)
        return None if matrix is None else replace(matrix)

    monkeypatch.setattr(StoredMatrices, "find", copied)
    monkeypatch.setattr("starsd_export.quantised_graph.id", lambda _: 0, raising=False)
    assert quantise_graph(onnx_ir.Model(graph, ir_version=10), stored) == len(made)
    for product, wanted in zip([node for node in graph if node.op_type == "MatMul"], made, strict=True):
        stored_as = product.inputs[1].producer().inputs
        steps, scales = (value.const_value.numpy().astype(np.float32) for value in stored_as)
        assert np.array_equal((steps * scales).astype(np.float16), wanted.T)
