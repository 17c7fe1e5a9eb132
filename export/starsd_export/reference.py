"""What transformers' own model class says: the yardstick of the parity gate.

The stock class runs with its own attention and its own masks over whole prefixes; only its cache rounds K and V to the
KV dtype, as every engine does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, PreTrainedModel

from starsd_edge.runtime.torch_features import FusedStates, saturated
from starsd_export.families import published_rope

STOCK_ATTENTION = "sdpa"


@dataclass(frozen=True)
class Reference:
    """One whole prefix of n tokens.

    Attributes:
        logits: float32 [n, V].
        features: float32 [n, F], rounded to float16 as the graph gives them.
        keys, values: float32 [L, n, H_kv, D].
    """

    logits: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]
    keys: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]

    def row(self, index: int) -> Reference:
        """One token of it, the token's axis kept."""
        part = slice(index, index + 1)
        return Reference(self.logits[part], self.features[part], self.keys[:, part], self.values[:, part])


class RoundingCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache, which stores K and V as the KV dtype can."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Round, then store."""
        return super().update(self._round(key_states), self._round(value_states), *args, **kwargs)

    def _round(self, states: torch.Tensor) -> torch.Tensor:
        return states.to(self._dtype).to(states.dtype)


def run_stock(
    model: PreTrainedModel,
    ids: Sequence[int],
    positions: Sequence[int] = (),
    *,
    kv_dtype: str,
    fused: FusedStates | None = None,
) -> Reference:
    """The stock model over a whole prefix, from nothing.

    Args:
        positions: of the tokens; none where they are counted from 0.
        fused: what makes features of its states; None takes the one after the final norm.
    """
    model.set_attn_implementation(STOCK_ATTENTION)
    cache = RoundingCache(getattr(torch, kv_dtype))
    places = torch.tensor([list(positions or range(len(ids)))])
    # The mask says that all is one text: without it, gaps between positions are taken for the ends of several.
    whole = {"position_ids": places, "attention_mask": torch.ones_like(places)}
    with torch.inference_mode(), published_rope(model), _layer_outputs(model) as states:
        output = model.base_model(input_ids=torch.tensor([list(ids)]), cache=cache, use_cache=True, **whole)
        hidden = output.last_hidden_state
        logits = model.get_output_embeddings()(hidden).float()
        features = hidden.half() if fused is None else saturated(fused([states[tap] for tap in fused.taps]))
    return Reference(
        logits[0].numpy(),
        features[0].float().numpy(),
        np.stack([layer.keys[0].transpose(0, 1).numpy() for layer in cache.layers]),
        np.stack([layer.values[0].transpose(0, 1).numpy() for layer in cache.layers]),
    )


@contextmanager
def _layer_outputs(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """What the embedding gives, then each layer: entry j is what goes into layer j."""
    states: list[torch.Tensor] = []
    modules = [model.get_input_embeddings(), *model.base_model.layers]
    handles = [module.register_forward_hook(lambda _, __, output: states.append(output)) for module in modules]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
