"""Weights in blocks for TensorRT: what is stored, and what a graph multiplies with."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_edge.errors import UsageError
from starsd_export.blocks import dequantise, quantise

SIZE = 32


def weights(seed: int = 0, rows: int = 6, blocks: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, blocks * SIZE)).astype(np.float32)


@pytest.mark.parametrize(("bits", "low", "high"), [(8, -127, 127), (4, -8, 7)])
def test_integers_keep_to_their_bits_and_scales_are_positive(bits: int, low: int, high: int) -> None:
    steps, scales = quantise(weights(), bits, SIZE)
    assert (steps.shape, scales.shape) == ((6, 3 * SIZE), (6, 3))
    assert low <= steps.min() < 0 < steps.max() <= high
    assert (scales > 0).all()


def test_int8_is_within_half_a_step_of_each_blocks_own_scale() -> None:
    weight = weights()
    weight[2, SIZE:] *= 100
    steps, scales = quantise(weight, 8, SIZE)
    error = np.abs(dequantise(steps, scales, SIZE).astype(np.float32) - weight).reshape(6, 3, SIZE)
    assert (error <= 0.55 * scales[..., None].astype(np.float32) + np.abs(weight).reshape(6, 3, SIZE) * 1e-3).all()


def test_int4_scales_are_better_than_those_of_the_largest_weight() -> None:
    weight = weights(rows=64)
    found = dequantise(*quantise(weight, 4, SIZE), SIZE).astype(np.float32)
    plain_scales = np.abs(weight).reshape(64, 3, SIZE).max(axis=2) / 7
    plain = np.rint(weight.reshape(64, 3, SIZE) / plain_scales[..., None]) * plain_scales[..., None]
    squares = [np.mean((values.reshape(weight.shape) - weight) ** 2) for values in (found, plain)]
    assert squares[0] < 0.95 * squares[1]


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros_and_nothing_else_becomes_infinite(bits: int) -> None:
    weight = np.zeros((2, 2 * SIZE), np.float32)
    weight[1, :SIZE] = 1e-9  # below what float16 has a scale for
    weight[1, SIZE] = 6e4
    found = dequantise(*quantise(weight, bits, SIZE), SIZE)
    assert np.array_equal(found[0], np.zeros(2 * SIZE))
    assert np.isfinite(found).all()
    assert found[1, SIZE] == pytest.approx(6e4, rel=0.15)
    assert np.abs(found[1, :SIZE]).max() < 1e-4


def test_blocks_that_do_not_fill_a_matrix_are_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"blocks of 64 do not fill a matrix with 96 inputs: use --block 32$"):
        quantise(np.zeros((2, 96), np.float32), 4, 64)
    with pytest.raises(UsageError, match="do not fill a matrix with 50 inputs: use --weights fp16"):
        quantise(np.zeros((2, 50), np.float32), 8, 32)
