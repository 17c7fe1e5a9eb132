"""transformers' own model classes as the graph that a bundle holds (`append` strategy).

The model class stays transformers'; what is ours is the cache that it writes to and the attention function that it
calls. New K and V are cast to the KV dtype before attention reads them, so that a token sees the same bits from the
cache and from its own pass. The exporter traces this module to ONNX and the torch engine runs it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from starsd_edge.runtime.torch_features import FusedStates, saturated, tapped

ATTENTION_NAME = "starsd_append"
OUT_OF_SIGHT = torch.finfo(torch.float32).min
_ONES_WIDTH = 2
"""A product with a single column may be computed as a dot product, in lanes."""


def head_width(config: PreTrainedConfig) -> int:
    """Numbers in one head of Q, K and V: configurations may leave it out."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


class AppendCache(Cache):  # type: ignore[misc]
    """Past rows in, new rows out: every layer reads past and new together and keeps nothing.

    Args:
        past_keys, past_values: per layer [S, H_kv, D] in the KV dtype.
    """

    def __init__(self, past_keys: Sequence[torch.Tensor], past_values: Sequence[torch.Tensor]) -> None:
        super().__init__(layers=[DynamicLayer() for _ in past_keys])
        self.past_keys = past_keys
        self.past_values = past_values
        self.new_keys: list[torch.Tensor] = []
        self.new_values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, H_kv, T, D] in; past and new together as [H_kv, S + T, D] in the model's dtype out."""
        keys, new_keys = _append(self.past_keys[layer_idx], key_states)
        values, new_values = _append(self.past_values[layer_idx], value_states)
        self.new_keys.append(new_keys)
        self.new_values.append(new_values)
        return keys, values


def _append(past: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    new = states[0].transpose(0, 1).contiguous().to(past.dtype)
    return torch.cat((past, new), dim=0).to(states.dtype).transpose(0, 1), new


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over grouped heads without repeating K and V.

    Args:
        query: [1, H, T, D].
        key, value: [H_kv, S + T, D].
        attention_mask: bool [1, 1, T, S + T], True where a row sees a column.

    Returns:
        [1, T, H, D].
    """
    _, heads, rows, width = query.shape
    kv_heads, columns, _ = key.shape
    group = heads // kv_heads
    grouped = query.contiguous().view(kv_heads, group * rows, width)
    # CPU runtimes multiply a single row by another kernel, with other roundings, than several. Two heads or more in a
    # group never are a single row; a head by itself is computed twice, so that a token has the bits it has in a chain.
    alone = group == 1
    if alone:
        grouped = torch.cat((grouped, grouped), dim=1)
        group = 2
    scores = torch.matmul(grouped * scaling, key.transpose(1, 2)).view(kv_heads, group, rows, columns)
    scores = torch.where(attention_mask, scores.float(), OUT_OF_SIGHT)
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True)).to(query.dtype)
    weights = weights.view(kv_heads, group * rows, columns)
    # The softmax's sum as a product with ones: a matrix product adds column by column, so columns out of sight add
    # nothing. A softmax kernel adds in lanes, and the bits of a row would depend on where its ancestors stand.
    total = torch.matmul(weights, value.new_ones(columns, _ONES_WIDTH))[..., :1]
    mixed = torch.matmul(weights, value) / total
    if alone:
        mixed = mixed[:, :rows]
    return mixed.reshape(1, heads, rows, width).transpose(1, 2), None


def run_layers(
    model: PreTrainedModel,
    fused: FusedStates | None,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    mask: torch.Tensor,
    cache: Cache,
    logits_idx: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One pass of T new tokens over whatever a cache holds, which takes in their rows.

    Args:
        fused: what makes the features; None gives the hidden state after the final norm.
        input_ids, position_ids: int64 [T].
        mask: bool [1, 1, T, columns].
        logits_idx: int64 [R].

    Returns:
        logits float32 [R, V], features float16 [T, F].
    """
    with tapped(model, () if fused is None else fused.taps) as states:
        output = model.base_model(
            input_ids=input_ids[None],
            attention_mask=mask,
            position_ids=position_ids[None],
            cache=cache,
            use_cache=True,
        )
    hidden = output.last_hidden_state[0]
    # `hidden[logits_idx]` is traced with a transpose that transposes nothing, for which some ONNX Runtimes
    # (1.23 among them) multiply by the wrong matrix.
    logits = model.get_output_embeddings()(hidden.index_select(0, logits_idx)).float()
    features = hidden.to(torch.float16) if fused is None else saturated(fused(states)[0])
    return logits, features


class TargetGraph(torch.nn.Module):  # type: ignore[misc]
    """A causal language model of transformers as a function without state: KV rows go in, new ones come out.

    Args:
        fused: what makes its features; None gives the hidden state after the final norm.
    """

    attention: tuple[str, Callable[..., Any]] = (ATTENTION_NAME, grouped_attention)
    """The attention function that the model calls, and its name."""

    def __init__(self, model: PreTrainedModel, fused: FusedStates | None = None) -> None:
        super().__init__()
        ALL_ATTENTION_FUNCTIONS.register(*self.attention)
        model.set_attn_implementation(self.attention[0])
        self.model = model
        self.fused = fused

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        tree_mask: torch.Tensor,
        logits_idx: torch.Tensor,
        past_keys: list[torch.Tensor],
        past_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """One pass of T new tokens over S committed ones.

        Args:
            input_ids, position_ids: int64 [T].
            tree_mask: bool [T, T].
            logits_idx: int64 [R].
            past_keys, past_values: per layer [S, H_kv, D] in the KV dtype.

        Returns:
            logits float32 [R, V], features float16 [T, F], new K and V rows per layer [T, H_kv, D] in the KV dtype.
        """
        past_len = past_keys[0].shape[0]
        seen = torch.ones((input_ids.shape[0], past_len), dtype=torch.bool, device=input_ids.device)
        mask = torch.cat((seen, tree_mask), dim=1)[None, None]
        cache = AppendCache(past_keys, past_values)
        logits, features = run_layers(self.model, self.fused, input_ids, position_ids, mask, cache, logits_idx)
        return logits, features, cache.new_keys, cache.new_values
