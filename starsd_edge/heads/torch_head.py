"""An EAGLE head in torch, in the pieces that drafting and training put together differently.

Drafting runs a few rows over a cache, training whole texts several draft tokens deep; only what attends to what
differs. The rest stands here once, so that the head which is trained is the head that drafts.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from starsd_edge.heads.engine import HeadSpec
from starsd_edge.runtime.torch_features import rms_norm


class TorchHead(nn.Module):  # type: ignore[misc]
    """The layers of a head. Every method takes any leading dimensions, written "..." below.

    Args:
        spec: its shape.
        tensors: by our names (`HeadSpec.tensor_shapes`), all of one floating-point type.
    """

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.spec = spec
        for name, tensor in tensors.items():
            self.register_parameter(_attribute(name), nn.Parameter(tensor, requires_grad=False))
        steps = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
        self.register_buffer("frequencies", (spec.rope_theta**-steps / spec.rope_factor).float(), persistent=False)

    def tensor(self, name: str) -> torch.Tensor:
        """One of its tensors, by our name."""
        found: torch.Tensor = getattr(self, _attribute(name))
        return found

    def enter(self, embedded: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads, and what its result is added to.

        Args:
            embedded: [..., H], embeddings of the tokens that follow the features.
            features: [..., H], of the target or predicted.
        """
        if self.spec.kind == "eagle":
            entered = functional.linear(torch.cat((embedded, features), dim=-1), self.fc_weight, self._bias("fc"))
            return entered, entered
        normed = self._norm(features, self.hidden_norm_weight)
        residual = normed if self.spec.norm_before_residual else features
        return torch.cat((self._norm(embedded, self.input_norm_weight), normed), dim=-1), residual

    def queries(self, entered: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[..., heads, D], rotated; `positions` int64 [...]."""
        return self._rotate(self._split(entered, "q", self.spec.n_heads), positions)

    def keys_values(self, entered: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., KV heads, D] each; keys rotated."""
        keys = self._split(entered, "k", self.spec.n_kv_heads)
        return self._rotate(keys, positions), self._split(entered, "v", self.spec.n_kv_heads)

    def leave(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The predicted features [..., H]; `attended` [..., heads * D]."""
        hidden = residual + functional.linear(attended, self.o_weight)
        normed = self._norm(hidden, self.post_norm_weight)
        gated = functional.silu(functional.linear(normed, self.gate_weight)) * functional.linear(normed, self.up_weight)
        hidden = hidden + functional.linear(gated, self.down_weight)
        return self._norm(hidden, self.norm_weight) if self._norms_output else hidden

    def logits(self, predicted: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary] from predicted features."""
        if self.spec.kind == "eagle3" and not self._norms_output:
            predicted = self._norm(predicted, self.norm_weight)
        return functional.linear(predicted, self.lm_head_weight)

    def _split(self, entered: torch.Tensor, name: str, heads: int) -> torch.Tensor:
        projected = functional.linear(entered, getattr(self, f"{name}_weight"), self._bias(name))
        return projected.unflatten(-1, (heads, self.spec.head_dim))

    def _bias(self, name: str) -> torch.Tensor | None:
        return getattr(self, f"{name}_bias", None)

    @property
    def _norms_output(self) -> bool:
        return self.spec.kind == "eagle3" and self.spec.norm_output

    def _norm(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(values, weight, self.spec.rms_norm_eps)

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """RoPE over half-split pairs, in float32."""
        angles = positions[..., None, None].float() * self.frequencies
        cosines, sines = angles.cos(), angles.sin()
        first, second = heads.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
        return rotated.to(heads.dtype)


def _attribute(name: str) -> str:
    return name.replace(".", "_")
