"""What an EAGLE-3 head makes of three of the target's layers.

It runs on the target, so that one feature crosses the wire and not three states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from starsd_edge.heads.torch_head import rms_norm

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
