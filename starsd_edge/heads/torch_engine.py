"""A head run by torch: the reference of every other engine."""

from __future__ import annotations

import torch
from torch.nn import functional

from starsd_edge.heads.engine import HeadRows, HeadStep
from starsd_edge.heads.spec import HeadSpec
from starsd_edge.heads.torch_head import TorchHead


class TorchHeadEngine:
    """See `HeadEngine`."""

    def __init__(self, head: TorchHead) -> None:
        self._head = head
        self._dtype = head.lm_head_weight.dtype

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._head.spec

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        with torch.inference_mode():
            predicted, new_keys, new_values, logits = run_head(
                self._head,
                functional.embedding(torch.from_numpy(rows.ids), self._head.embed_weight),
                torch.from_numpy(rows.features).to(self._dtype),
                torch.from_numpy(rows.positions),
                torch.from_numpy(rows.keys).to(self._dtype),
                torch.from_numpy(rows.values).to(self._dtype),
                torch.from_numpy(rows.mask),
                torch.from_numpy(rows.logits_rows),
            )
        return HeadStep(*(part.float().numpy() for part in (predicted, new_keys, new_values, logits)))


def run_head(
    head: TorchHead,
    embedded: torch.Tensor,
    features: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    logits_rows: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`HeadEngine.forward` on tensors, from embeddings [R, H]: predicted features, keys, values, logits."""
    entered, residual = head.enter(embedded, features)
    new_keys, new_values = head.keys_values(entered, positions)
    attended = _attend(
        head.queries(entered, positions), torch.cat((keys, new_keys)), torch.cat((values, new_values)), mask
    )
    predicted = head.leave(residual, attended)
    return predicted, new_keys, new_values, head.logits(predicted[logits_rows])


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[R, heads * D] from queries [R, heads, D] over keys and values [S + R, KV heads, D]."""
    rows, heads, width = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.view(rows, kv_heads, heads // kv_heads, width).transpose(0, 1).reshape(kv_heads, -1, width)
    scores = torch.matmul(grouped * width**-0.5, keys.permute(1, 2, 0)).float()
    scores = scores.view(kv_heads, rows, heads // kv_heads, -1)
    scores = torch.where(mask[None, :, None, :], scores, torch.finfo(torch.float32).min)
    weights = scores.softmax(dim=-1).to(values.dtype).view(kv_heads, -1, keys.shape[0])
    mixed = torch.matmul(weights, values.transpose(0, 1)).view(kv_heads, rows, heads // kv_heads, width)
    return mixed.transpose(0, 1).reshape(rows, heads * width)
