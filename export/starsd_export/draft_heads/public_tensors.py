"""Files of a published head: config.json beside safetensors (sharded or not) or a pytorch_model.bin, and the tensors
that it must have, those that it may have, and no others.

A pickle can run code when it is read. torch's reader for weights alone takes tensors and plain containers and refuses
everything else; what it refuses is not read in any other way.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from starsd_edge.bundles.integrity import staged_directory
from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadKind, HeadSpec
from starsd_export.checkpoint import require_fit
from starsd_export.checkpoint_files import read_json
from starsd_export.draft_heads.public_config import HeadConfig
from starsd_export.safetensors_source import SafetensorsSource

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_PICKLE = "pytorch_model.bin"
_KINDS: dict[HeadKind, str] = {"eagle": "an EAGLE-1 or EAGLE-2 head", "eagle3": "an EAGLE-3 head"}
_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class HeadFiles:
    """The files of a published head.

    Attributes:
        path: its directory.
        contents: of config.json.
        names: of every tensor in the file, by EAGLE's names.
        tensors: by EAGLE's names.
    """

    path: Path
    contents: dict[str, Any]
    names: dict[str, str]
    tensors: dict[str, torch.Tensor]


def read_files(directory: Path) -> HeadFiles:
    """Read config.json and every tensor.

    Raises:
        UsageError: files are missing or damaged, a pickle holds more than tensors, or two tensors have one place.
    """
    if (directory / _PICKLE).is_file() and not any(directory.glob("*.safetensors")):
        contents, stored = read_json(directory / CONFIG_NAME), _read_pickle(directory / _PICKLE)
    else:
        source = SafetensorsSource(directory)
        contents, stored = source.config(), source.tensors()
    names = _canonical_names(stored, directory)
    return HeadFiles(directory, contents, names, {canonical: stored[name] for canonical, name in names.items()})


def require_tensors(files: HeadFiles, spec: HeadSpec, config: HeadConfig, *, fusion_bias: bool) -> None:
    """Refuse files that do not hold this head.

    Args:
        fusion_bias: an EAGLE-3 head's fusion has one.

    Raises:
        UsageError: names the tensors that are missing, misshapen, too many, or no plain numbers.
    """
    path, names, tensors = files.path, files.names, files.tensors
    shapes = _shapes(spec, config, fusion_bias=fusion_bias)
    misshaped = [
        (names[name], tuple(tensor.shape), shapes[name])
        for name, tensor in tensors.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    missing = (_file_name(name, names) for name in shapes.keys() - _optional(spec, config) - tensors.keys())
    require_fit(path, _KINDS[spec.kind], missing, misshaped, (names[name] for name in tensors.keys() - shapes.keys()))
    for name, tensor in tensors.items():
        if name not in (TO_TARGET, KEPT) and tensor.dtype not in _PLAIN:
            raise UsageError(f"{path} holds {names[name]} as {tensor.dtype}: give the head before it was quantised")
    if ROTATION in tensors:
        steps = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
        if not torch.allclose(tensors[ROTATION].double(), spec.rope_theta**-steps, rtol=1e-2):
            raise UsageError(
                f"{path} holds {names[ROTATION]}, which is not what its rope_theta of {spec.rope_theta} gives"
            )


def _shapes(spec: HeadSpec, config: HeadConfig, *, fusion_bias: bool) -> dict[str, tuple[int, ...]]:
    """All tensors that the head may have."""
    shapes = {PUBLIC_NAMES[name]: shape for name, shape in spec.tensor_shapes().items()}
    if spec.kind == "eagle3":
        shapes[FUSION_WEIGHT] = (spec.hidden_size, config.states_width)
        shapes[TO_TARGET] = (spec.draft_vocab_size,)
        shapes[KEPT] = (spec.vocab_size,)
        if fusion_bias:
            shapes[FUSION_BIAS] = (spec.hidden_size,)
        if config.norm_before_fc:
            shapes[FUSION_NORM] = (config.states_width,)
    return {**shapes, ROTATION: (spec.head_dim // 2,)}


def _optional(spec: HeadSpec, config: HeadConfig) -> set[str]:
    """Tensors that it need not bring: the target's where they fit, and what follows from others."""
    optional = {KEPT, ROTATION}
    whole = spec.draft_vocab_size == spec.vocab_size
    if whole:
        optional.add(TO_TARGET)
    if config.target_hidden_size in (None, spec.hidden_size):
        optional.add(PUBLIC_NAMES["embed.weight"])
    if whole and (config.tie_word_embeddings or config.target_hidden_size in (None, spec.hidden_size)):
        optional.add(PUBLIC_NAMES["lm_head.weight"])
    return optional


def read_draft_ids(files: HeadFiles, spec: HeadSpec) -> npt.NDArray[np.int64]:
    """int64 [draft vocabulary]. d2t holds what is added to each draft id, and not ids; t2d is a mask of the target's
    ids that the head drafts.

    Args:
        files: with tensors of the right shapes.

    Raises:
        UsageError: ids outside the target's vocabulary, twice the same, or others than the mask has.
    """
    tensors, offsets = files.tensors, files.tensors.get(TO_TARGET)
    name = files.names.get(TO_TARGET, TO_TARGET)
    ids = own = np.arange(spec.draft_vocab_size, dtype=np.int64)
    if offsets is not None:
        if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
            raise UsageError(f"{files.path} holds {name} as {offsets.dtype} and not as whole numbers: fetch it again")
        ids = own + offsets.long().numpy()
    table = f"{files.path} holds a {name}"
    if ids.min() < 0 or ids.max() >= spec.vocab_size or len(np.unique(ids)) != len(ids):
        raise UsageError(f"{table} that maps draft ids to no ids, or several to one: fetch the head again")
    if spec.draft_vocab_size == spec.vocab_size and not np.array_equal(ids, own):
        raise UsageError(f"{table} that moves ids although the head drafts all of them: fetch the head again")
    if KEPT in tensors and not np.array_equal(np.flatnonzero(tensors[KEPT].bool().numpy()), np.sort(ids)):
        raise UsageError(f"{table} and a {files.names[KEPT]} that keep different ids: fetch the head again")
    return ids


# Names of the tensors of published heads. One table serves EAGLE-1/2 and EAGLE-3 heads, for reading and for writing.
# Other spellings of the same names are first converted to EAGLE's (`_SPELLINGS`).
PUBLIC_NAMES = {
    "embed.weight": "embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "hidden_norm.weight": "layers.0.hidden_norm.weight",
    "input_norm.weight": "layers.0.input_layernorm.weight",
    "q.weight": "layers.0.self_attn.q_proj.weight",
    "k.weight": "layers.0.self_attn.k_proj.weight",
    "v.weight": "layers.0.self_attn.v_proj.weight",
    "o.weight": "layers.0.self_attn.o_proj.weight",
    "q.bias": "layers.0.self_attn.q_proj.bias",
    "k.bias": "layers.0.self_attn.k_proj.bias",
    "v.bias": "layers.0.self_attn.v_proj.bias",
    "post_norm.weight": "layers.0.post_attention_layernorm.weight",
    "gate.weight": "layers.0.mlp.gate_proj.weight",
    "up.weight": "layers.0.mlp.up_proj.weight",
    "down.weight": "layers.0.mlp.down_proj.weight",
    "norm.weight": "norm.weight",
}
"""By our names (`HeadSpec.tensor_shapes`)."""
QKV_BIASES = tuple(PUBLIC_NAMES[f"{name}.bias"] for name in "qkv")
FUSION_WEIGHT, FUSION_BIAS, FUSION_NORM = "fc.weight", "fc.bias", "input_norm.weight"
"""Of an EAGLE-3 head, which has no `fc` of its own."""
TO_TARGET, KEPT = "d2t", "t2d"
ROTATION = "layers.0.self_attn.rotary_emb.inv_freq"
"""A table that old files hold; it follows from the configuration."""
_LAYER = "layers.0."
_SPELLINGS = {
    "midlayer.": _LAYER,  # EAGLE-3
    "transformer.": _LAYER,  # speculators' EAGLE-1
    "fusion_fc.": "fc.",
    "draft_id_to_target_id": TO_TARGET,  # vLLM
}


def _canonical_names(names: Iterable[str], path: object) -> dict[str, str]:
    """The name in the file of each tensor, by its name here.

    Raises:
        UsageError: two tensors have one place.
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        known = next((spelling for spelling in _SPELLINGS if name.startswith(spelling)), None)
        canonical = name if known is None else _SPELLINGS[known] + name[len(known) :]
        if canonical in found:
            raise UsageError(f"{path} holds {name} and {found[canonical]}, which have one place: fetch the head again")
        found[canonical] = name
    return found


def _file_name(canonical: str, found: Mapping[str, str]) -> str:
    """What a tensor that is not there would be called: as the layer's others are, or all its spellings."""
    spellings = [
        canonical,
        *(other + canonical[len(name) :] for other, name in _SPELLINGS.items() if canonical.startswith(name)),
    ]
    layer = next((name for known, name in found.items() if known.startswith(_LAYER)), None)
    if layer is not None and canonical.startswith(_LAYER):
        prefix = layer.partition(".")[0]
        return next(name for name in spellings if name.startswith(prefix))
    return " or ".join(spellings)


def _read_pickle(file: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the library raises whatever the bytes lead it to
        raise UsageError(
            f"{file} holds more than weights or is damaged ({type(error).__name__}), so it is not read: "
            "convert it to safetensors where you trust it, or fetch it again"
        ) from None
    if not isinstance(contents, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in contents.items()
    ):
        raise UsageError(f"{file} is no table of tensors: fetch the head again")
    return {name: tensor.detach() for name, tensor in contents.items()}


_OUTPUT = "lm_head.weight"


def write_public_head(
    directory: Path, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], extras: Mapping[str, Any]
) -> None:
    """Write config.json and model.safetensors.

    The layout has no output matrix and no draft vocabulary: whoever loads it drafts among all ids by the target's own
    output matrix. So "lm_head.weight" is not written, and of a head that was trained on fewer ids the others are
    drafted too.

    Args:
        directory: new or empty.
        spec: of kind "eagle".
        tensors: by our names, the whole embedding among them.
        extras: what else belongs into config.json, such as the ids of special tokens.

    Raises:
        UsageError: the directory holds files, or the head is of another kind or not whole.
    """
    if spec.kind != "eagle":
        raise UsageError("only EAGLE-1 heads are written in the public layout")
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"{directory} holds files: name a new directory, or empty this one first")
    shapes = {name: shape for name, shape in spec.tensor_shapes().items() if name != _OUTPUT}
    misshaped = [
        (name, tuple(tensors[name].shape), shape)
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    require_fit("the head", "it", shapes.keys() - tensors.keys(), misshaped, ())
    # Copies, because the file format takes no tensors that share memory.
    stored = {PUBLIC_NAMES[name]: tensors[name].detach().cpu().contiguous().clone() for name in shapes}
    with staged_directory(directory) as staging:
        save_file(stored, staging / WEIGHTS_NAME, {"format": "pt"})
        config = {**extras, **_config(spec), "torch_dtype": str(tensors["fc.weight"].dtype).removeprefix("torch.")}
        (staging / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _config(spec: HeadSpec) -> dict[str, Any]:
    scaling = {"type": "linear", "rope_type": "linear", "factor": spec.rope_factor}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": None if spec.rope_factor == 1.0 else scaling,
        "bias": spec.fc_bias,
        "qkv_bias": spec.qkv_bias,
        "tie_word_embeddings": False,
    }
