"""config.json of a published head: the numbers of its layer, the layers of the target that it reads, and the variants
that this version does not run.

The layouts differ in where things stand: at the top (EAGLE, SGLang, SpecForge), in "eagle_config" (Model Optimizer), or
in "transformer_layer_config" (speculators, which leaves out whatever is a Llama's default).

They differ in how they count the target's layers, too. Here id j means the input of layer j, which is the output of
layer j - 1 (0 is the embedding), as in EAGLE and vLLM. SGLang, SpecForge and Model Optimizer mean the output of layer j
and write their ids inside "eagle_config". A head that is fed by the wrong numbering drafts badly and says nothing, so
whoever shows a head should show `TapLayers.origin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadKind, HeadSpec, Positive
from starsd_edge.runtime.torch_features import TAPS

_LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
_LAYER, _GROUP, _SPECULATORS = "transformer_layer_config", "eagle_config", "speculators_model_type"
_NO = (False, 0)
_ONLY: dict[str, tuple[Collection[Any], str]] = {
    "num_hidden_layers": ((1,), "one layer"),
    "hidden_act": (("silu",), "SiLU"),
    "num_aux_hidden_states": ((TAPS,), f"{TAPS} layers of the target"),
    "fc_norm": (_NO, "no norm, or one over all states together, before the fusion"),
    "use_aux_norm": (_NO, "no norm, or one over all states together, before the fusion"),
    "add_para_norm": (_NO, "no norms before the fusion of embedding and feature"),
    "layernorms": (_NO, "no norms around the layer"),
    "use_mtp_layernorm": (_NO, "no norms around the layer"),
    "mlp_bias": (_NO, "no biases in the MLP"),
    "partial_rotary_factor": ((1,), "whole heads"),
    "logit_scale": ((1,), "plain logits"),
    "is_causal": ((True,), "causal attention"),
    "parallel_drafting": (_NO, "one draft token after the other"),
    "parallel_draft_step": ((0, 1), "one draft token after the other"),
}
"""Settings that change what a head computes: the values that are run, and what they mean."""


class HeadConfig(msgspec.Struct, frozen=True):
    """What is read of a config.json; None where it says nothing.

    Attributes:
        bias: of `fc`.
        fusion_bias: the same, as speculators writes it.
        qkv_bias, attention_bias: of Q, K and V.
        target_hidden_size: Ht, where it is not `hidden_size`.
    """

    hidden_size: Positive
    intermediate_size: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    draft_vocab_size: Positive | None = None
    target_hidden_size: Positive | None = None
    max_position_embeddings: Positive = 2048
    rms_norm_eps: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    bias: bool | None = None
    fusion_bias: bool | None = None
    qkv_bias: bool | None = None
    attention_bias: bool | None = None
    tie_word_embeddings: bool = False
    norm_before_residual: bool | None = None
    norm_before_fc: bool = False
    norm_output: bool = False

    @property
    def draft_vocabulary(self) -> int:
        """Ids that the head drafts; all where the configuration does not say."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def states_width(self) -> int:
        """3 * Ht."""
        return TAPS * (self.target_hidden_size or self.hidden_size)


def flatten_config(contents: Mapping[str, Any], path: Any) -> dict[str, Any]:
    """Every setting that is not null, wherever it stands.

    Raises:
        UsageError: a variant that is not run.
    """
    parts = [contents.get(_GROUP), contents.get(_LAYER), contents]
    merged = dict(_LLAMA) if _SPECULATORS in contents else {}
    for part in parts:
        if isinstance(part, Mapping):
            merged |= {name: value for name, value in part.items() if value is not None}
    for name, (allowed, meaning) in _ONLY.items():
        if name in merged and merged[name] not in allowed:
            raise UsageError(
                f"{path} sets {name} = {merged[name]!r}, which this version does not run (supported: {meaning})"
            )
    if "quantization_config" in merged:
        raise UsageError(f"{path} holds quantised weights: give the head that they were made from")
    _refuse_windows(merged, path)
    return merged


def find_kind(config: Mapping[str, Any], names: Collection[str], path: Any) -> HeadKind:
    """Which head it is, by its configuration and EAGLE's names of its tensors.

    Raises:
        UsageError: another kind of drafter.
    """
    kind = _kind(config, names)
    if kind is None:
        raise UsageError(f"{path} holds no head of EAGLE-1, EAGLE-2 or EAGLE-3: this version drafts with no other")
    return kind


def _kind(config: Mapping[str, Any], names: Collection[str]) -> HeadKind | None:
    stated = config.get(_SPECULATORS)
    if stated is not None:
        return stated if stated in ("eagle", "eagle3") else None
    if "draft_vocab_size" in config or "eagle3" in str(config.get("architectures")).lower():
        return "eagle3"
    marks = ("midlayer.", "d2t", "draft_id_to_target_id", "norm.weight", "layers.0.hidden_norm.")
    if any(name.startswith(marks) for name in names):
        return "eagle3"
    return "eagle" if any(name.startswith(("fc.", "fusion_fc.", "layers.0.")) for name in names) else None


def read_config(config: Mapping[str, Any], path: Any) -> HeadConfig:
    """Check the numbers of a flattened configuration.

    Raises:
        UsageError: names the number that is missing, of another type, or does not fit the others.
    """
    try:
        found = msgspec.convert(dict(config), HeadConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} has a config.json that is no head's: {error}") from None
    heads, kv_heads = found.num_attention_heads, found.num_key_value_heads or found.num_attention_heads
    if heads % kv_heads:
        raise UsageError(f"{path} has {heads} heads of Q and {kv_heads} of K, which do not divide them")
    if found.head_dim is None and found.hidden_size % heads:
        raise UsageError(f"{path} has a hidden_size of {found.hidden_size}, which {heads} heads do not divide")
    if (found.head_dim or found.hidden_size // heads) % 2:
        raise UsageError(f"{path} has heads of an odd width, which RoPE cannot rotate in pairs")
    if found.draft_vocabulary > found.vocab_size:
        raise UsageError(f"{path} has a draft_vocab_size larger than its vocab_size of {found.vocab_size}")
    return found


def build_spec(
    kind: HeadKind, found: HeadConfig, config: Mapping[str, Any], path: Any, *, fc_bias: bool, qkv_bias: bool
) -> HeadSpec:
    """The shape of the head.

    Args:
        config: flattened.
        fc_bias, qkv_bias: whether the head has these biases.

    Raises:
        UsageError: a RoPE scaling or a feature that is not run, or a speculators head that leaves its residual open.
    """
    if kind == "eagle3" and _SPECULATORS in config and found.norm_before_residual is None:
        raise UsageError(f"{path} does not set norm_before_residual, on which its draft tokens depend: ask its maker")
    if kind == "eagle3" and config.get("use_aux_hidden_state") is False:
        raise UsageError(f"{path} reads one layer of the target, which this version does not run (supported: {TAPS})")
    theta, factor = read_rope(config, path)
    eagle3 = kind == "eagle3"
    return HeadSpec(
        kind=kind,
        hidden_size=found.hidden_size,
        intermediate_size=found.intermediate_size,
        n_heads=found.num_attention_heads,
        n_kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        vocab_size=found.vocab_size,
        draft_vocab_size=found.draft_vocabulary if eagle3 else found.vocab_size,
        rms_norm_eps=found.rms_norm_eps,
        rope_theta=theta,
        max_positions=found.max_position_embeddings,
        rope_factor=factor,
        fc_bias=fc_bias and not eagle3,
        qkv_bias=qkv_bias,
        norm_before_residual=eagle3 and bool(found.norm_before_residual),
        norm_output=eagle3 and found.norm_output,
    )


def _refuse_windows(config: Mapping[str, Any], path: Any) -> None:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None or "sliding_attention" in str(config.get("layer_types")):
        raise UsageError(f"{path} has a sliding window, which this version does not run (supported: full attention)")


_BASE = 10000.0
_KINDS = ("default", "linear")
_Above0 = Annotated[float, Meta(gt=0, lt=1e12)]


class _Scaling(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Above0 | None = None
    factor: _Above0 | None = None
    partial_rotary_factor: float | None = None


def read_rope(config: Mapping[str, Any], path: Any) -> tuple[float, float]:
    """Base of the frequencies, and the factor by which positions are divided.

    Args:
        config: flattened; the scaling stands in `rope_scaling`, or with the base in `rope_parameters`.

    Raises:
        UsageError: names a kind of scaling that is not run.
    """
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    try:
        scaling = msgspec.convert(stated, _Scaling)
        theta = msgspec.convert(scaling.rope_theta or config.get("rope_theta", _BASE), _Above0)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} has RoPE settings that cannot be read: {error}") from None
    kind = scaling.rope_type or scaling.type or "default"
    if any(isinstance(value, dict) for value in stated.values()):
        kind = "different for each kind of layer"
    if kind not in _KINDS:
        raise UsageError(
            f"{path} has the RoPE scaling {kind!r}, which this version does not run for heads "
            f"(supported: {', '.join(_KINDS)})"
        )
    if scaling.partial_rotary_factor not in (None, 1.0):
        raise UsageError(f"{path} rotates {scaling.partial_rotary_factor} of each head: only whole heads are run")
    if kind == "linear" and scaling.factor is None:
        raise UsageError(f"{path} has linear RoPE scaling without a factor: fetch the head again")
    return theta, scaling.factor if kind == "linear" and scaling.factor else 1.0


_TAPS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class TapLayers:
    """Layers of one target.

    Attributes:
        ids: rising; the head reads what goes into these layers.
        origin: in words, with where they come from.
    """

    ids: tuple[int, ...]
    origin: str


@dataclass(frozen=True)
class StatedTaps:
    """What a configuration says.

    Attributes:
        ids: as they stand there; empty where it says nothing.
        outputs: they mean outputs of layers.
    """

    ids: tuple[int, ...]
    outputs: bool

    def resolve(self, layers: int) -> TapLayers:
        """For a target of so many layers.

        Raises:
            UsageError: the target has no such layers.
        """
        default = (2, layers // 2, layers - 3)
        if not self.ids:
            taps = TapLayers(default, f"the inputs of layers {_listed(default)} (EAGLE's default)")
        elif self.outputs or self.ids == tuple(tap - 1 for tap in default):
            # Ids outside of "eagle_config" mean inputs, but a list that is exactly the default of those who mean
            # outputs was copied from there.
            ids = tuple(tap + 1 for tap in self.ids)
            taps = TapLayers(ids, f"the inputs of layers {_listed(ids)} (outputs of {_listed(self.ids)}, as stated)")
        else:
            taps = TapLayers(self.ids, f"the inputs of layers {_listed(self.ids)} (as stated)")
        if not all(low < high for low, high in zip((-1, *taps.ids), (*taps.ids, layers + 1), strict=True)):
            raise UsageError(
                f"the head reads {taps.origin}, and the target has {layers} layers: it fits another target"
            )
        return taps


def read_taps(config: Mapping[str, Any], path: Any) -> StatedTaps:
    """What the contents of a config.json state.

    Raises:
        UsageError: something else than three layers.
    """
    group = config.get(_GROUP)
    inner = group.get(_TAPS) if isinstance(group, Mapping) else None
    ids = inner or config.get(_TAPS) or []
    if not isinstance(ids, list) or not all(type(layer) is int for layer in ids) or len(ids) not in (0, TAPS):
        raise UsageError(f"{path} sets {_TAPS} = {ids}, which this version does not run (supported: {TAPS} layers)")
    return StatedTaps(tuple(ids), outputs=bool(inner))


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))
