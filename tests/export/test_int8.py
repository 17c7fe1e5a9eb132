"""Blocks of 32 weights with one scale each."""

from __future__ import annotations

import numpy as np
import pytest

from starsd_export.quantised_graph import BLOCK, quantise_block


def unpacked(weight: np.ndarray) -> np.ndarray:
    packed, scales = quantise_block(weight)
    return ((packed.astype(np.float64) - 128) * scales.reshape(*packed.shape[:2], 1)).reshape(weight.shape)


def test_every_weight_is_within_half_a_step_of_its_block() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 3 * BLOCK)).astype(np.float32)
    weight[2, BLOCK:] *= 1000
    steps = np.abs(weight.reshape(5, 3, BLOCK)).max(axis=2, keepdims=True) / 127
    errors = np.abs(unpacked(weight) - weight).reshape(5, 3, BLOCK)
    assert (errors <= 0.5001 * steps).all()


def test_zeros_stay_zeros_and_the_largest_is_exact() -> None:
    weight = np.zeros((1, 2 * BLOCK), np.float32)
    weight[0, 3] = -2.54
    assert np.allclose(unpacked(weight), weight, atol=1e-7)


def test_a_width_that_blocks_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        quantise_block(np.zeros((2, BLOCK + 1), np.float32))
