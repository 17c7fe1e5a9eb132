"""Rounding with error feedback: what one input's rounding misses is made good by the weights of inputs still to come.

The idea is that of OBQ and GPTQ (Frantar et al., 2022): with H = X^T X of the inputs, the best answer to the error of
one column is its row of the inverse's Cholesky factor. Scales are chosen beforehand, so the columns may go in any
order, and the most important go first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from starsd_export.quantising.stored import RANGE, StoredMatrix, choose_scales

DAMPING = 0.3
"""Of the mean of H's diagonal, added to it. High: on a few thousand tokens less of it fits those tokens better and
other text worse.
"""
_COLUMNS_AT_ONCE = 64


def quantise_with_feedback(weight: torch.Tensor, moments: torch.Tensor, bits: int, size: int) -> StoredMatrix:
    """Store weights so that their products with the inputs stay near.

    Args:
        weight: float32 [N, K].
        moments: float32 [K, K], the mean of x x^T over inputs x.

    Raises:
        UsageError: blocks of this size do not fill K.
    """
    damped = moments + DAMPING * moments.diagonal().mean().clamp(min=1e-12) * torch.eye(len(moments))
    importance = damped.diagonal()
    scales = choose_scales(weight.numpy(), bits, size, importance.numpy())
    order = torch.argsort(importance, descending=True, stable=True)
    factor = _inverse_factor(damped[order][:, order])
    by_input = torch.from_numpy(scales.astype(np.float32)).repeat_interleave(size, dim=1).T[order].contiguous()
    steps = torch.empty((weight.shape[1], weight.shape[0]), dtype=torch.int8)
    steps[order] = _round_in_turn(weight.T[order].contiguous(), by_input, factor, RANGE[bits])
    return StoredMatrix(_transposed(steps), scales, bits, size)


def _inverse_factor(moments: torch.Tensor) -> torch.Tensor:
    """Upper Cholesky factor of the inverse."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments.double()))
    return torch.linalg.cholesky(inverse, upper=True).float()


def _round_in_turn(
    columns: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor, limits: tuple[int, int]
) -> torch.Tensor:
    """int8 [K, N] of weights [K, N], which are changed on the way; an input is a row here."""
    steps = torch.empty(columns.shape, dtype=torch.int8)
    for start in range(0, len(columns), _COLUMNS_AT_ONCE):
        here = slice(start, start + _COLUMNS_AT_ONCE)
        beyond = slice(start + _COLUMNS_AT_ONCE, None)
        rest, own = columns[here], factor[here, here]
        missed = torch.empty_like(rest)
        for row in range(len(rest)):
            scale = scales[start + row]
            chosen = (rest[row] / scale).round().clamp(*limits)
            steps[start + row] = chosen.to(torch.int8)
            missed[row] = (rest[row] - chosen * scale) / own[row, row]
            rest[row + 1 :] -= own[row, row + 1 :, None] * missed[row]
        columns[beyond] -= factor[here, beyond].T @ missed
    return steps


def _transposed(steps: torch.Tensor) -> npt.NDArray[np.int8]:
    return np.ascontiguousarray(steps.numpy().T)
