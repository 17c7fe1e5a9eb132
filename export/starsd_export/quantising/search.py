"""The layers of a model into few bits, one after the other, each on what the stored ones before it give.

Every input of a matrix gets a scale, folded into what gives that input (AWQ: Lin et al., 2023, section 3.2).

Rounding errors count by how large the input is that they are multiplied with. Weights of large inputs are made larger
before rounding, and the inputs as much smaller where they come from: in a norm's weights, or in the rows of the matrix
before. The product stays what it was. How far to go is one exponent for each group of matrices, found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from starsd_export.quantising.stored import RANGE, StoredMatrices, StoredMatrix, choose_scales, quantise
from starsd_export.reference import STOCK_ATTENTION

PARTS = ("q", "k", "v", "o", "gate", "up", "down")
"""The linear layers of a layer."""
_EXPONENTS = tuple(step / 8 for step in range(8))
_ROWS_TRIED = 256
"""Of each matrix, spread over it: enough to tell exponents apart."""


@dataclass(frozen=True)
class InputGroup:
    """Linear layers that read the same input.

    Attributes:
        linears: by the name of their part, one of `PARTS`.
        source: a norm with a weight per channel, or the matrix whose rows are the channels; None where the channels
            are mixed on the way.
    """

    linears: Mapping[str, torch.nn.Linear]
    source: torch.nn.Module | None

    @property
    def reader(self) -> torch.nn.Linear:
        """One of the layers that read this input."""
        return next(iter(self.linears.values()))

    def fold(self, scales: torch.Tensor) -> None:
        """Multiply the inputs' weights by `scales` [K], and divide where the inputs come from."""
        for linear in self.linears.values():
            set_parameter(linear, "weight", linear.weight * scales)
        if isinstance(self.source, torch.nn.Linear):
            set_parameter(self.source, "weight", self.source.weight / scales[:, None])
            if self.source.bias is not None:
                set_parameter(self.source, "bias", self.source.bias / scales)
        elif self.source is not None:
            set_parameter(self.source, "weight", self.source.weight / scales)


def input_groups(layer: torch.nn.Module) -> list[InputGroup]:
    """The four groups of a layer; all families that are exported have these."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        InputGroup({"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}, layer.input_layernorm),
        InputGroup({"o": attention.o_proj}, None),
        InputGroup({"gate": mlp.gate_proj, "up": mlp.up_proj}, layer.post_attention_layernorm),
        InputGroup({"down": mlp.down_proj}, mlp.up_proj),
    ]


def linear_parts(model: PreTrainedModel) -> list[tuple[str, torch.nn.Linear]]:
    """Every linear layer of the model's layers with the name of its part."""
    groups = [group for layer in model.base_model.layers for group in input_groups(layer)]
    return [(part, linear) for group in groups for part, linear in group.linears.items()]


def search_scales(weights: Sequence[torch.Tensor], moments: torch.Tensor, size: int) -> torch.Tensor:
    """Scales [K] with which int4 moves the products of these matrices least; all one where none helps.

    Args:
        weights: float32 [N, K] each, with one input.
        moments: float32 [K, K], the mean of x x^T over inputs x.
        size: inputs in a block.
    """
    tried = [weight[:: max(1, len(weight) // _ROWS_TRIED)] for weight in weights]
    typical = moments.diagonal().sqrt()
    typical = typical.clamp(min=1e-4 * float(typical.max()) + 1e-12)
    candidates = [_balanced(typical**exponent) for exponent in _EXPONENTS]
    errors = [sum(_moved(weight, moments, scales, size) for weight in tried) for scales in candidates]
    return candidates[errors.index(min(errors))]


def _moved(weight: torch.Tensor, moments: torch.Tensor, scales: torch.Tensor, size: int) -> float:
    """How far the products move, in squares, where weights are rounded with these scales."""
    importance = (moments.diagonal() / scales**2).numpy()
    stored = quantise((weight * scales).numpy(), 4, size, importance).weight()
    gap = torch.from_numpy(stored).float() / scales - weight
    return float(((gap @ moments) * gap).sum())


def _balanced(scales: torch.Tensor) -> torch.Tensor:
    """About one, so that float16 holds what is multiplied and what is divided."""
    return scales / (scales.max() * scales.min()).sqrt()


def set_parameter(module: torch.nn.Module, name: str, values: torch.Tensor) -> None:
    """Give a module other numbers: as a new parameter, because the old one may be tied to another module."""
    setattr(module, name, torch.nn.Parameter(values, requires_grad=False))


DAMPING = 0.3
"""Of the mean of H's diagonal, added to it. High: on a few thousand tokens less of it fits those tokens better and
other text worse.
"""
_COLUMNS_AT_ONCE = 64


def quantise_with_feedback(weight: torch.Tensor, moments: torch.Tensor, bits: int, size: int) -> StoredMatrix:
    """Store weights so that their products with the inputs stay near: rounding with error feedback.

    The error of rounding the weights of one input is compensated by the weights of inputs that are still to come. The
    idea is that of OBQ and GPTQ (Frantar et al., 2022): with H = X^T X of the inputs, the best compensation for the
    error of one column is its row of the inverse's Cholesky factor. Scales are chosen beforehand, so the columns may go
    in any order, and the most important go first.

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
    return StoredMatrix(np.ascontiguousarray(steps.numpy().T), scales, bits, size)


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


_TOKENS_AT_ONCE = 2048


def quantise_layers(
    model: PreTrainedModel,
    bits: Mapping[str, int],
    size: int,
    texts: Sequence[Sequence[int]],
    stored: StoredMatrices,
    progress: Callable[[int, int], None],
) -> None:
    """Search scales on texts, fold them, and store every matrix of the layers with error feedback.

    Args:
        model: float32, in evaluation mode; gets the weights that are stored.
        bits: of each part of a layer, see `InputGroup.linears`.
        size: inputs in a block.
        texts: token ids, all of one length.
        progress: called with the layers done and all of them.

    Raises:
        UsageError: blocks of this size do not fill a matrix.
    """
    model.set_attn_implementation(STOCK_ATTENTION)
    layers = model.base_model.layers
    with torch.no_grad():
        hidden, positions = _embedded(model, texts)
        for index, layer in enumerate(layers):
            run = partial(layer, attention_mask=None, position_embeddings=positions)
            groups = input_groups(layer)
            moments = _moments(groups, run, hidden)
            moments = [_scaled(group, seen, bits, size) for group, seen in zip(groups, moments, strict=True)]
            for group, seen in zip(groups, moments, strict=True):
                _store(group, seen, bits, size, stored)
            hidden = [run(rows) for rows in hidden]
            progress(index + 1, len(layers))


def _embedded(
    model: PreTrainedModel, texts: Sequence[Sequence[int]]
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What goes into the first layer, float32 [B, T, H] each, and the rotations of all."""
    length = len(texts[0])
    at_once = max(1, _TOKENS_AT_ONCE // length)
    ids = torch.tensor([list(text) for text in texts]).split(at_once)
    hidden = [model.get_input_embeddings()(rows) for rows in ids]
    return hidden, model.base_model.rotary_emb(hidden[0], torch.arange(length)[None])


def _moments(
    groups: Sequence[InputGroup],
    run: Callable[[torch.Tensor], torch.Tensor],
    hidden: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """The mean of x x^T over the inputs x of each group, float32 [K, K]."""
    sums = [torch.zeros(2 * (group.reader.in_features,)) for group in groups]

    def watch(total: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].flatten(0, 1)
        total.addmm_(rows.T, rows)

    with ExitStack() as hooks:
        for group, total in zip(groups, sums, strict=True):
            hooks.enter_context(
                group.reader.register_forward_pre_hook(lambda _, inputs, total=total: watch(total, inputs))
            )
        for rows in hidden:
            run(rows)
    tokens = sum(rows.shape[0] * rows.shape[1] for rows in hidden)
    return [total / tokens for total in sums]


def _scaled(group: InputGroup, moments: torch.Tensor, bits: Mapping[str, int], size: int) -> torch.Tensor:
    """Fold the best scales of a group into it; returns the moments of its inputs from then on."""
    coarse = [linear.weight.detach() for part, linear in group.linears.items() if bits[part] == 4]
    if group.source is None or not coarse:
        return moments
    scales = search_scales(coarse, moments, size)
    group.fold(scales)
    return moments / scales / scales[:, None]


def _store(
    group: InputGroup, moments: torch.Tensor, bits: Mapping[str, int], size: int, stored: StoredMatrices
) -> None:
    for part, linear in group.linears.items():
        if bits[part] == 4:
            matrix = quantise_with_feedback(linear.weight.detach(), moments, 4, size)
        else:
            matrix = quantise(linear.weight.detach().numpy(), bits[part], size)
        set_weight(linear, stored.add(matrix))


def set_weight(module: torch.nn.Module, weight: npt.NDArray[np.float16]) -> None:
    """Give a module float16 weights as float32."""
    set_parameter(module, "weight", torch.from_numpy(weight).float())
