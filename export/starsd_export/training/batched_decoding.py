"""Many texts of one model side by side: a batch that shrinks as its texts end.

Not for targets: passes of many rows round otherwise than the engine's, and it does not matter what a text to train on
would have been.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

_TOP_K = 50
_SHRINK_BELOW = 0.75
"""Share of texts still going on below which the others are taken out of the batch, which copies the cache."""


class _RowCache(Cache):  # type: ignore[misc]
    """K and V of B texts in buffers of one size, written column by column.

    Args:
        layers: of the model.
        capacity: columns: tokens of the longest text.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self.length = 0
        """Columns written; the caller moves it on after each pass."""
        self._capacity = capacity
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, H_kv, T, D] in, everything so far out."""
        for buffers, states in ((self._keys, key_states), (self._values, value_states)):
            if layer_idx == len(buffers):
                batch, heads, _rows, width = states.shape
                buffers.append(states.new_zeros(batch, heads, self._capacity, width))
            buffers[layer_idx][:, :, self.length : self.length + states.shape[2]] = states
        end = self.length + key_states.shape[2]
        return self._keys[layer_idx][:, :, :end], self._values[layer_idx][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns written."""
        return self.length

    def keep(self, rows: torch.Tensor) -> None:
        """Only these texts go on."""
        self._keys = [buffer[rows] for buffer in self._keys]
        self._values = [buffer[rows] for buffer in self._values]


def decode_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], most: int, temperature: float, eos_ids: Collection[int]
) -> list[list[int]]:
    """What the model adds to each prompt: at most `most` tokens, the one that ends it included.

    Args:
        temperature: 0 takes the likeliest token; above, one of the `_TOP_K` likeliest is drawn by torch's generator.
    """
    width = max(map(len, prompts))
    ids, seen = _pad_left(prompts, width)
    cache = _RowCache(model.config.num_hidden_layers, width + most)
    positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
    answers: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))  # which answer each row of the batch continues
    with torch.inference_mode():
        for _ in range(most):
            causal = _mask(seen, ids.shape[1])
            hidden = model.base_model(
                input_ids=ids, attention_mask=causal, position_ids=positions, cache=cache, use_cache=True
            ).last_hidden_state[:, -1]
            cache.length += ids.shape[1]
            chosen = _choose(model.get_output_embeddings()(hidden), temperature)
            for row, token in zip(going, chosen.tolist(), strict=True):
                if not answers[row] or answers[row][-1] not in eos_ids:
                    answers[row].append(token)
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            seen = torch.cat((seen, seen.new_ones(len(seen), 1)), dim=1)
            alive = [index for index, row in enumerate(going) if answers[row][-1] not in eos_ids]
            if not alive:
                break
            if len(alive) < _SHRINK_BELOW * len(going):
                rows = torch.tensor(alive)
                cache.keep(rows)
                ids, positions, seen = ids[rows], positions[rows], seen[rows]
                going = [going[index] for index in alive]
    return answers


def _choose(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """One token for each row, int64 [B]."""
    if not temperature:
        return logits.argmax(dim=-1)
    best, ids = logits.topk(min(_TOP_K, logits.shape[-1]), dim=-1)
    drawn = torch.multinomial((best.float() / temperature).softmax(dim=-1), 1)
    return ids.gather(1, drawn)[:, 0]


def _pad_left(prompts: Sequence[Sequence[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and where they are no padding: int64 [B, width], the prompts at the right edge."""
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    seen = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
        seen[row, width - len(prompt) :] = 1
    return ids, seen


def _mask(seen: torch.Tensor, rows: int) -> torch.Tensor:
    """bool [B, 1, rows, columns]: the last `rows` columns see what comes before them and is no padding.

    A row of padding sees itself, so that no row sees nothing.
    """
    columns = seen.shape[1]
    order = torch.arange(columns)
    causal = order[None, :] <= order[columns - rows :, None]
    itself = order[None, :] == order[columns - rows :, None]
    return (causal & seen.bool()[:, None, :] | itself)[:, None]
