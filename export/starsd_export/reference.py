"""What transformers' own model class gives, the reference values of the parity gate, and how large activations become.

For these values the stock class runs with its own attention and its own masks over whole prefixes; only its cache
rounds K and V to the KV dtype, as every engine does.

Engines for GPUs compute in float16, which ends at 65504; models trained in bfloat16 need not stay below. ONNX Runtime
on a CPU computes float16 graphs in float32 and would not show it. So the float32 model is watched over a few prompts:
what goes into and comes out of its modules. (Products of Q and K are formed between modules and are not seen.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import torch
from transformers import DynamicCache, PreTrainedModel

from starsd_edge.runtime.torch_features import FusedStates, saturated, tapped
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
        """The reference of one token; arrays keep the axis of tokens."""
        part = slice(index, index + 1)
        return Reference(self.logits[part], self.features[part], self.keys[:, part], self.values[:, part])


class RoundingCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache with K and V rounded to the KV dtype."""

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
        positions: position of each token; empty counts from 0.
        fused: fuses hidden states into features; None takes the hidden state after the final norm.
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
    with ExitStack() as hooks:
        for module in (model.get_input_embeddings(), *model.base_model.layers):
            hooks.enter_context(module.register_forward_hook(lambda _, __, output: states.append(output)))
        yield states


LARGEST_FLOAT16 = 65504.0
SAFE_SHARE = 0.5
"""Share of `LARGEST_FLOAT16` from which on the export warns: the prompts here are few, and others reach further."""
SAMPLE_TEXTS = (
    "The hub drafts a few words ahead and every target checks them against its own model before it goes on.",
    "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233 ...\n\n| a | b |\n|---|---|\n",
    "Wie heißt die Hauptstadt? ¿Qué hora es? 中文、日本語、한국어. Привет!",
)
FEATURES = "features"
_IN_LAYER = re.compile(r"layers\.\d+")
_IS_LAYER = re.compile(r"layers\.\d+$")


def sample_prompts(tokenizer: Mapping[str, Any], bos_id: int | None, vocab_size: int) -> list[list[int]]:
    """Ids of a few prompts of prose, code, numbers and other scripts.

    Args:
        tokenizer: contents of a tokenizer.json.
        bos_id: put first where there is one: the token that tends to have the largest activations of all.
    """
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    first = [] if bos_id is None else [bos_id]
    encoded = ([*first, *backend.encode(text, add_special_tokens=False).ids] for text in SAMPLE_TEXTS)
    return [[token for token in ids if token < vocab_size] for ids in encoded]


def activation_ranges(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], fused: FusedStates | None = None
) -> dict[str, float | None]:
    """The largest magnitude by layer, over the prompts.

    Args:
        model: float32, in evaluation mode.
        prompts: token ids.
        fused: what makes its features.

    Returns:
        "layers.N" for each layer, "embed_tokens", "norm", "lm_head", and `FEATURES` where they are fused; None where a
        value was not finite.
    """
    model.set_attn_implementation(STOCK_ATTENTION)
    largest: dict[str, float] = {}
    with _watched(model, largest), torch.inference_mode():
        for ids in prompts:
            with tapped(model, () if fused is None else fused.taps) as states:
                model(torch.tensor([list(ids)]), use_cache=False)
            if fused is not None:
                _record(largest, FEATURES, fused(states))
    return {name: float(f"{value:.4g}") if math.isfinite(value) else None for name, value in largest.items()}


def range_notes(ranges: Mapping[str, float | None]) -> list[str]:
    """A line if the activations come near the end of float16, and one if fused features do; none else."""
    bound = SAFE_SHARE * LARGEST_FLOAT16
    beyond = {name: value for name, value in ranges.items() if value is None or value > bound}
    notes = [_feature_note(beyond.pop(FEATURES))] if FEATURES in beyond else []
    if not beyond:
        return notes
    worst = max(beyond, key=lambda name: math.inf if beyond[name] is None else float(beyond[name] or 0))
    reached = "values that are not finite" if beyond[worst] is None else f"{beyond[worst]:.0f}"
    others = f" (and {len(beyond) - 1} more beyond {bound:.0f})" if len(beyond) > 1 else ""
    return [
        f"{worst} reaches {reached} over the sample prompts{others}, and float16 ends at {LARGEST_FLOAT16:.0f}: "
        "engines that compute in float16 may overflow with this model",
        *notes,
    ]


def _feature_note(largest: float | None) -> str:
    reached = "values that are not finite" if largest is None else f"{largest:.0f}"
    return (
        f"fused features reach {reached} over the sample prompts, and what is beyond {LARGEST_FLOAT16:.0f} travels as "
        "that: the head will draft worse there"
    )


@contextmanager
def _watched(model: PreTrainedModel, largest: dict[str, float]) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not _IN_LAYER.search(name) and not list(module.parameters(recurse=False)):
                continue  # containers, and the tables of RoPE, which engines keep in float32
            record = partial(_record, largest, _place(name))
            # Whole layers give the residual stream; what projections take is formed between modules.
            if _IS_LAYER.search(name) or not any(module.children()):
                hooks.enter_context(module.register_forward_hook(lambda _, __, output, record=record: record(output)))
            if isinstance(module, torch.nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(lambda _, inputs, record=record: record(inputs)))
        yield


def _record(largest: dict[str, float], place: str, values: Any) -> None:
    for tensor in values if isinstance(values, tuple) else (values,):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # numpy's one thread: torch would wake the others thousands of times, for less work than that takes.
            array = tensor.numpy()
            reached = max(float(array.max()), -float(array.min()))
            # A NaN compares with nothing.
            largest[place] = math.inf if math.isnan(reached) else max(reached, largest.get(place, 0.0))


def _place(name: str) -> str:
    layer = _IN_LAYER.search(name)
    return layer.group() if layer else name.rpartition(".")[2]
