"""Files of a published head: config.json beside safetensors (sharded or not) or a pytorch_model.bin.

A pickle can run code when it is read. torch's reader for weights alone takes tensors and plain containers and refuses
everything else; what it refuses is not read in any other way.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from starsd_edge.bundles.integrity import staged_directory
from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadSpec
from starsd_export.checkpoint_files import read_json
from starsd_export.draft_heads.public_tensors import PUBLIC_NAMES
from starsd_export.safetensors_source import SafetensorsSource
from starsd_export.weights import require_fit

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_PICKLE = "pytorch_model.bin"


def read_files(directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The contents of config.json, and every tensor by its name in the file.

    Raises:
        UsageError: files are missing or damaged, or a pickle holds more than tensors.
    """
    if (directory / _PICKLE).is_file() and not any(directory.glob("*.safetensors")):
        return read_json(directory / CONFIG_NAME), _read_pickle(directory / _PICKLE)
    source = SafetensorsSource(directory)
    return source.config(), source.tensors()


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

    The layout has no output matrix and no draft vocabulary: whoever loads it guesses among all ids by the target's own
    output matrix. So "lm_head.weight" is not written, and of a head that was trained on fewer ids the others are
    guessed too.

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
