"""The layers of a model into few bits, one after the other, each on what the stored ones before it give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from starsd_export.quantising.channel_scales import (
    InputGroup,
    input_groups,
    quantise_with_feedback,
    search_scales,
    set_parameter,
)
from starsd_export.quantising.stored import StoredMatrices, quantise
from starsd_export.reference import STOCK_ATTENTION

_TOKENS_AT_ONCE = 2048


def quantise_layers(
    model: PreTrainedModel,
    bits: Mapping[str, int],
    size: int,
    texts: Sequence[Sequence[int]],
    stored: StoredMatrices,
    progress: Callable[[int, int], None] = lambda done, layers: None,
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

    handles = [
        group.reader.register_forward_pre_hook(lambda _, inputs, total=total: watch(total, inputs))
        for group, total in zip(groups, sums, strict=True)
    ]
    try:
        for rows in hidden:
            run(rows)
    finally:
        for handle in handles:
            handle.remove()
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
