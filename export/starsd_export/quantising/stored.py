"""Matrices in blocks along their inputs, one float16 scale each, and where a graph finds those of its weights.

Symmetric: a weight is its block's scale times an integer (-127..127, or -8..7), zero is zero.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starsd_edge.errors import UsageError

BLOCK_SIZES = (32, 64, 128)
RANGE = {8: (-127, 127), 4: (-8, 7)}
# A block's largest weight over these gives the scales that are tried; the one with the least squared error stays. Eight
# bits have no need of it.
_DIVISORS = {8: (127.0,), 4: (6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.75)}
_SMALLEST_SCALE = float(np.finfo(np.float16).smallest_normal)
_ROWS_AT_ONCE = 1024

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """A matrix [N, K] as it is stored. One is equal to itself alone, so that it can be a key.

    Attributes:
        steps: int8 [N, K], values of `bits` bits.
        scales: float16 [N, K / size].
        size: inputs in a block.
    """

    steps: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float16]
    bits: int
    size: int

    def weight(self) -> npt.NDArray[np.float16]:
        """The weights [N, K] that a graph multiplies with."""
        blocks = self.steps.reshape(len(self.steps), -1, self.size) * self.scales[..., None].astype(np.float32)
        return blocks.reshape(self.steps.shape).astype(np.float16)


class StoredMatrices:
    """The matrices of a model, found by the float16 weights that they make."""

    def __init__(self) -> None:
        self._by_weight: dict[bytes, StoredMatrix] = {}

    def __len__(self) -> int:
        return len(self._by_weight)

    def add(self, matrix: StoredMatrix) -> npt.NDArray[np.float16]:
        """Keep one; returns its weights."""
        weight = matrix.weight()
        self._by_weight[_digest(weight)] = matrix
        return weight

    def find(self, weight: npt.NDArray[np.generic]) -> StoredMatrix | None:
        """The one that makes these weights, if there is one."""
        return self._by_weight.get(_digest(weight)) if weight.dtype == np.float16 else None


def require_blocks(width: int, size: int) -> None:
    """Check that blocks fill a matrix.

    Raises:
        UsageError: they do not; says which would.
    """
    if width % size:
        fitting = [str(other) for other in BLOCK_SIZES if width % other == 0]
        advice = f"use --block {' or '.join(fitting)}" if fitting else "use --weights fp16"
        raise UsageError(f"blocks of {size} do not fill a matrix with {width} inputs: {advice}")


def quantise(
    weight: npt.NDArray[np.floating], bits: int, size: int, importance: npt.NDArray[np.floating] | None = None
) -> StoredMatrix:
    """Store weights [N, K], each rounded to the nearest that its block has.

    Args:
        importance: [K], what a squared error counts by input; None counts all alike.

    Raises:
        UsageError: blocks of this size do not fill K.
    """
    scales = choose_scales(weight, bits, size, importance)
    steps = np.empty(weight.shape, np.int8)
    for part in _parts(len(weight)):
        blocks = _in_blocks(weight[part], size) / scales[part][..., None].astype(np.float32)
        steps[part] = np.clip(np.rint(blocks), *RANGE[bits]).reshape(-1, weight.shape[1])
    return StoredMatrix(steps, scales, bits, size)


def choose_scales(
    weight: npt.NDArray[np.floating], bits: int, size: int, importance: npt.NDArray[np.floating] | None = None
) -> npt.NDArray[np.float16]:
    """float16 [N, K / size]: for every block the scale with the least squared error. Arguments as of `quantise`."""
    rows, width = weight.shape
    require_blocks(width, size)
    counts = None if importance is None else importance.astype(np.float32).reshape(1, -1, size)
    scales = np.empty((rows, width // size), np.float16)
    for part in _parts(rows):
        scales[part] = _best_scales(_in_blocks(weight[part], size), bits, counts)
    return scales


def _best_scales(blocks: Floats, bits: int, counts: Floats | None) -> npt.NDArray[np.float16]:
    largest = np.abs(blocks).max(axis=2)
    least = np.full(largest.shape, np.inf, np.float32)
    best: npt.NDArray[np.float16] = np.zeros(largest.shape, np.float16)
    for divisor in _DIVISORS[bits]:
        # A scale that float16 has none or few bits of would lose the block; zeros stay zeros with any scale.
        scales: npt.NDArray[np.float16] = np.maximum(largest / divisor, _SMALLEST_SCALE).astype(np.float16)
        if len(_DIVISORS[bits]) == 1:
            return scales
        wide = scales[..., None].astype(np.float32)
        missed = np.square(np.clip(np.rint(blocks / wide), *RANGE[bits]) * wide - blocks)
        error = (missed if counts is None else missed * counts).sum(axis=2)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return best


def _in_blocks(weight: npt.NDArray[np.floating], size: int) -> Floats:
    return weight.astype(np.float32).reshape(len(weight), -1, size)


def _parts(rows: int) -> list[slice]:
    return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, rows, _ROWS_AT_ONCE)]


def _digest(weight: npt.NDArray[np.generic]) -> bytes:
    """Of the values and the shape, whatever the order in memory."""
    digest = hashlib.sha256(repr(weight.shape).encode())
    for part in _parts(len(weight)):
        digest.update(np.ascontiguousarray(weight[part]).data)
    return digest.digest()
