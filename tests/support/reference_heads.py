"""What published heads compute, written from their papers without a cache: slow, and for tests only.

Tensors go by their names in the files, "layers.0." left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

Tensors = Mapping[str, torch.Tensor]


def norm(values: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm."""
    return values / (values.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(heads: torch.Tensor, theta: float, factor: float) -> torch.Tensor:
    """RoPE on [rows, heads, width], whose halves are the real and the imaginary parts of what is turned."""
    rows, _, width = heads.shape
    angles = torch.arange(rows)[:, None] / factor * theta ** -(torch.arange(width // 2) / (width // 2))
    turned = torch.complex(heads[..., : width // 2], heads[..., width // 2 :]) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(entered: torch.Tensor, tensors: Tensors, heads: int, theta: float, factor: float) -> torch.Tensor:
    """Causal, over all rows."""

    def projected(name: str) -> torch.Tensor:
        return functional.linear(
            entered, tensors[f"self_attn.{name}_proj.weight"], tensors.get(f"self_attn.{name}_proj.bias")
        )

    width = tensors["self_attn.q_proj.weight"].shape[0] // heads
    queries = rotated(projected("q").unflatten(-1, (heads, width)), theta, factor)
    keys = rotated(projected("k").unflatten(-1, (-1, width)), theta, factor)
    values = projected("v").unflatten(-1, (-1, width))
    out = []
    for head in range(heads):
        shared = head * keys.shape[1] // heads
        scores = queries[:, head] @ keys[:, shared].T / width**0.5
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        out.append(scores.softmax(-1) @ values[:, shared])
    return functional.linear(torch.cat(out, dim=-1), tensors["self_attn.o_proj.weight"])


def mlp(values: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Gated by SiLU."""
    gate = values @ tensors["mlp.gate_proj.weight"].T
    return (gate * gate.sigmoid() * (values @ tensors["mlp.up_proj.weight"].T)) @ tensors["mlp.down_proj.weight"].T


def eagle1(
    embedded: torch.Tensor,
    features: torch.Tensor,
    tensors: Tensors,
    heads: int,
    eps: float,
    theta: float,
    factor: float,
) -> torch.Tensor:
    """The predicted features, which the target's output matrix reads as they are."""
    entered = functional.linear(torch.cat((embedded, features), -1), tensors["fc.weight"], tensors.get("fc.bias"))
    hidden = entered + attention(entered, tensors, heads, theta, factor)
    return hidden + mlp(norm(hidden, tensors["post_attention_layernorm.weight"], eps), tensors)


def eagle3(
    embedded: torch.Tensor,
    features: torch.Tensor,
    tensors: Tensors,
    heads: int,
    eps: float,
    theta: float,
    *,
    norm_before_residual: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predicted features before and after the last norm, of which the output matrix reads the latter."""
    normed = norm(features, tensors["hidden_norm.weight"], eps)
    entered = torch.cat((norm(embedded, tensors["input_layernorm.weight"], eps), normed), -1)
    residual = normed if norm_before_residual else features
    hidden = residual + attention(entered, tensors, heads, theta, 1.0)
    hidden = hidden + mlp(norm(hidden, tensors["post_attention_layernorm.weight"], eps), tensors)
    return hidden, norm(hidden, tensors["norm.weight"], eps)
