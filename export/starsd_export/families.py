"""The model families that can be exported, and what a checkpoint's configuration allows.

A graph is static: what a token's row becomes may depend on its position and on what it sees, and on nothing else. Most
configurations of these families are of that kind. Two are so only up to a length, and bundles of them end there: a
sliding window (within its length it is full attention) and RoPE scalings that change every position's rotation once a
sequence has outgrown the original length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from starsd_edge.errors import UsageError, one_line
from starsd_edge.runtime.torch_model import head_width
from starsd_export.checkpoint_files import ModelNumbers, known_keys, require_types

FAMILIES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""`model_type` and transformers' class of each family whose exported graph was compared with that class."""

SHORTEST_CONTEXT = 160
"""Tokens that the parity gate's longest sequence has."""
_FIXED_ROPE = ("default", "linear", "yarn", "llama3")
_ROPE_FIXED_WITHIN = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}
"""Kinds that are fixed up to a length, and where that length stands."""
_SCALED_BY_FACTOR = ("linear", "dynamic", "llama3")
_FACTORS = ("short_factor", "long_factor")
_UNCHECKED = {
    "max_position_embeddings": (),
    "num_attention_heads": (),
    "rms_norm_eps": (),
    "hidden_act": (),
    "rope_theta": (),
    "sliding_window": ("mistral",),
    "no_rope_layer_interval": ("smollm3",),
}
"""Keys that no tensor's shape would contradict, and the families that look at them; none named: all do."""


@dataclass(frozen=True)
class Limits:
    """What a bundle of this configuration can take.

    Attributes:
        max_context: tokens of a sequence.
        notes: one line for each thing that a user who knows the checkpoint would not expect.
    """

    max_context: int
    notes: tuple[str, ...] = ()


def require_family(model_type: str, path: Any) -> None:
    """Refuse by name what is no supported family.

    Raises:
        UsageError: says what is supported.
    """
    if model_type not in FAMILIES:
        raise UsageError(
            f"{path} holds the architecture {model_type!r}, which this version does not export "
            f"(supported: {', '.join(FAMILIES)})"
        )


def build_config(contents: Mapping[str, Any], path: Any) -> PreTrainedConfig:
    """transformers' configuration from the contents of a config.json of a supported family.

    Raises:
        UsageError: another class than the family's own, quantised weights, or numbers that do not fit together.
    """
    family = contents["model_type"]
    classes = contents.get("architectures") or [FAMILIES[family]]
    if FAMILIES[family] not in classes:
        raise UsageError(
            f"{path} holds a {', '.join(map(str, classes))}, which this version does not export (of the family "
            f"{family}: {FAMILIES[family]})"
        )
    if quantisation := contents.get("quantization_config"):
        kind = quantisation.get("quant_method", "unknown") if isinstance(quantisation, Mapping) else "unknown"
        raise UsageError(
            f"{path} holds quantised weights (kind {kind!r}), which this version does not read: "
            "give the checkpoint that they were made from"
        )
    if contents.get("per_layer_config"):
        raise UsageError(
            f"{path} has layers of different shapes (per_layer_config), which this version does not export"
        )
    numbers = known_keys(require_types(_stated_in(path), dict(contents), ModelNumbers))
    if numbers.get("hidden_act", "silu") not in ACT2FN:
        raise UsageError(f"{_stated_in(path)} has the hidden_act {numbers['hidden_act']!r}, which transformers lacks")
    if numbers.get("head_dim", 1) is None and "num_attention_heads" in numbers and "hidden_size" in numbers:
        numbers["head_dim"] = (
            numbers["hidden_size"] // numbers["num_attention_heads"]
        )  # what null means to most classes
    # A padding token decides nothing here, and the families' own defaults are ids that a vocabulary need not have.
    numbers["pad_token_id"] = None
    try:
        config: PreTrainedConfig = CONFIG_MAPPING[family].from_dict(numbers)
        if "rope_type" in (config.rope_parameters or {}):
            # Once more, as each model class does: only now is a length that stands beside the RoPE numbers, and comes
            # before theirs, an attribute that transformers looks at.
            config.standardize_rope_params()
    except Exception as error:  # transformers' checks raise whatever they like
        raise UsageError(f"{path} has a configuration that transformers refuses: {one_line(error)}") from None
    return config


def unstated(contents: Mapping[str, Any], config: PreTrainedConfig) -> tuple[str, ...]:
    """A line where a configuration leaves out what decides every token: transformers' default is then no word of its
    own.

    Args:
        contents: of config.json.
        config: what transformers made of it.
    """
    rope = contents.get("rope_scaling") or contents.get("rope_parameters") or {}
    stated = {*contents, *rope, *(("no_rope_layer_interval",) if contents.get("no_rope_layers") else ())}
    taken = [
        f"{name} {(config.rope_parameters or {}).get(name, getattr(config, name, None))}"
        for name, families in _UNCHECKED.items()
        if name not in stated and (not families or config.model_type in families)
    ]
    if not taken:
        return ()
    return (f"config.json leaves out what decides the text; taken from transformers' defaults: {', '.join(taken)}",)


def read_limits(config: PreTrainedConfig, path: Any) -> Limits:
    """How far the static graph of this configuration equals transformers' own model.

    Raises:
        UsageError: a setting that no static graph can follow, or a context too short for the parity gate.
    """
    context, notes = int(config.max_position_embeddings), []
    for length, reason in (_rope_limit(config, path), _window_limit(config, path)):
        if length is not None and length < context:
            context = length
            notes.append(f"the context ends at {length} tokens and not at {config.max_position_embeddings}: {reason}")
    if context < SHORTEST_CONTEXT:
        raise UsageError(f"{path} has a context of {context} tokens; at least {SHORTEST_CONTEXT} are needed")
    return Limits(context, tuple(notes))


def fix_rope(model: PreTrainedModel, factors: torch.Tensor | None = None) -> None:
    """Make the rotation of a token depend on its position alone, as it does up to the length that `read_limits` sets.

    Args:
        factors: float [head_dim / 2], by which a checkpoint divides the frequencies, if it does so tensor-wise.

    Raises:
        UsageError: not as many factors as frequencies.
    """
    rotary = model.base_model.rotary_emb
    if rotary.rope_type in _ROPE_FIXED_WITHIN:
        rotary.rope_type = "default"  # what transformers looks at to decide whether to watch the length
    if factors is not None:
        if factors.shape != rotary.inv_freq.shape:
            raise UsageError(
                f"the checkpoint has {factors.numel()} RoPE factors for {rotary.inv_freq.numel()} frequencies: "
                "fetch it again"
            )
        rotary.inv_freq.div_(factors.to(rotary.inv_freq.dtype))
        rotary.original_inv_freq.copy_(rotary.inv_freq)


@contextmanager
def published_rope(model: PreTrainedModel) -> Iterator[None]:
    """Undo `fix_rope` for a while: the rotation watches the length again, as the published class does."""
    rotary, kind = model.base_model.rotary_emb, (model.config.rope_parameters or {}).get("rope_type")
    if kind not in _ROPE_FIXED_WITHIN:
        yield
        return
    kept = rotary.inv_freq.clone(), rotary.max_seq_len_cached, rotary.attention_scaling
    rotary.rope_type = kind
    try:
        yield
    finally:
        rotary.rope_type = "default"
        rotary.inv_freq, rotary.max_seq_len_cached, rotary.attention_scaling = kept


def _rope_limit(config: PreTrainedConfig, path: Any) -> tuple[int | None, str]:
    rope = config.rope_parameters or {}
    nested = any(isinstance(value, Mapping) for value in rope.values())
    kind = "by kind of layer" if nested else rope.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in (*_FIXED_ROPE, *_ROPE_FIXED_WITHIN):
        raise UsageError(
            f"{path} has the RoPE scaling {kind!r}, which this version does not export "
            f"(supported: {', '.join((*_FIXED_ROPE, *_ROPE_FIXED_WITHIN))})"
        )
    part = rope.get("partial_rotary_factor")
    if part is not None and part != 1.0:
        raise UsageError(f"{path} rotates {part} of each head, which this version does not export: only whole heads")
    if kind in _SCALED_BY_FACTOR and rope.get("factor") is None:
        raise UsageError(f"{_stated_in(path)} has {kind} RoPE scaling without its factor: fetch the checkpoint again")
    for name in _FACTORS if kind == "longrope" else ():
        if len(rope.get(name) or ()) != head_width(config) // 2:
            raise UsageError(
                f"{_stated_in(path)} has a {name} of {len(rope.get(name) or ())} numbers for heads of "
                f"{head_width(config)}: it takes half as many"
            )
    if head_width(config) % 2:
        raise UsageError(f"{path} has heads of {head_width(config)} numbers, which RoPE cannot rotate in pairs")
    if kind not in _ROPE_FIXED_WITHIN:
        return None, ""
    name = _ROPE_FIXED_WITHIN[kind]
    length = rope.get(name, getattr(config, name, None)) or config.max_position_embeddings
    return int(length), f"beyond, {kind} RoPE scaling rotates every earlier token anew, which no static graph can"


def _window_limit(config: PreTrainedConfig, path: Any) -> tuple[int | None, str]:
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise UsageError(f"{path} has layers of {sorted(unknown)}, which this version does not export")
    window = getattr(config, "sliding_window", None)
    slides = config.model_type == "mistral" or "sliding_attention" in kinds
    if window is None or not slides:
        return None, ""
    return int(window), "that is its sliding window, and this version has full attention only"


def _stated_in(path: Any) -> Path:
    return path / "config.json" if Path(path).is_dir() else Path(path)
