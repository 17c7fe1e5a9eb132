"""The features that a target gives an EAGLE-3 head: states from within the model, fused by the head's own first layer.

Layers are counted as EAGLE does: tap j is what goes into layer j, and tap L, of L layers, into the final norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # a hub that runs heads on a GPU has torch without it

TAPS = 3
"""Layers of the target that go into a feature."""


@dataclass(frozen=True)
class Fusion:
    """A linear layer over the low, the middle and the high state; Ht is the target's hidden size.

    Attributes:
        weight: [H, 3 * Ht].
        bias: [H], or None.
        norm: [3 * Ht], the weight of an RMSNorm that goes before, over all three states together; or None.
        eps: of that norm.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    norm: torch.Tensor | None
    eps: float

    @property
    def target_hidden_size(self) -> int:
        """Width of one state."""
        return int(self.weight.shape[1]) // TAPS

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Features [..., H] from the three states side by side, [..., 3 * Ht]."""
        if self.norm is not None:
            states = rms_norm(states, self.norm, self.eps)
        return functional.linear(states, self.weight, self.bias)


_LARGEST_FLOAT16 = torch.finfo(torch.float16).max


class FusedStates(torch.nn.Module):  # type: ignore[misc]
    """A fusion and the taps that it reads.

    Args:
        taps: rising.
        fusion: its tensors are taken as float32.
    """

    def __init__(self, taps: Sequence[int], fusion: Fusion) -> None:
        super().__init__()
        self.taps = tuple(taps)
        self._eps = fusion.eps
        for name in ("weight", "bias", "norm"):
            tensor = getattr(fusion, name)
            self.register_buffer(name, None if tensor is None else tensor.float())

    @property
    def width(self) -> int:
        """Numbers in a feature."""
        return int(self.weight.shape[0])

    def forward(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """float32 [..., H] from the states [..., Ht] of the taps, in their order."""
        fusion = Fusion(self.weight, self.bias, self.norm, self._eps)
        return fusion.fuse(torch.cat([state.float() for state in states], dim=-1))


def saturated(features: torch.Tensor) -> torch.Tensor:
    """As float16, where what is beyond its range becomes its largest number: heads make nothing of infinities."""
    return features.clamp(-_LARGEST_FLOAT16, _LARGEST_FLOAT16).to(torch.float16)


@contextmanager
def tapped(model: PreTrainedModel, taps: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """The states at rising taps, noted while the model runs once."""
    states: list[torch.Tensor] = []
    places = [*model.base_model.layers, model.base_model.norm]
    handles = [places[tap].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])) for tap in taps]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def rms_norm(values: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension, in float32 up to the weight."""
    wide = values.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return scaled.to(values.dtype) * weight
