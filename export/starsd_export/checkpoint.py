"""Reading a checkpoint: what it is, what is in it, and the transformers model that it makes.

Two layouts are taken: a GGUF file, and a directory with config.json, tokenizer.json and safetensors files. Pickles are
refused unopened: loading one runs whatever its maker put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from starsd_edge.errors import UsageError
from starsd_export.gguf_source import GgufSource
from starsd_export.safetensors_source import SafetensorsSource

SUPPORTED = ("llama",)
"""Values of `model_type` whose exported graph was compared with transformers' own."""
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """Everything the exporter needs of a checkpoint, its weights not yet loaded.

    Attributes:
        name: file or directory name, without the path.
        model_type: transformers' name of the architecture.
        weight_bytes: size of the weights as float32, before any quantisation.
        tokenizer: contents of a tokenizer.json.
        chat_template: jinja source, or None.
        bos_id, eos_ids, add_bos: ids that belong to the model.
        licence: as the checkpoint states it, "unknown" where it does not.
        source_fp: fingerprint of the weights and the architecture.
        load: makes the float32 model; `load()` may take a while and much memory.
    """

    name: str
    model_type: str
    weight_bytes: int
    tokenizer: Mapping[str, Any]
    chat_template: str | None
    bos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    licence: str
    source_fp: str
    load: Callable[[], PreTrainedModel]


def open_checkpoint(path: Path) -> Checkpoint:
    """Look at a checkpoint without loading its weights.

    Raises:
        UsageError: no checkpoint, a pickle, a damaged file, or an architecture that is not supported.
    """
    if path.suffix in _PICKLES:
        raise UsageError(f"{path} is a pickle, which can run code when it is read: convert it to safetensors first")
    source = GgufSource(path) if path.is_file() else SafetensorsSource(path)
    if source.model_type not in SUPPORTED:
        raise UsageError(
            f"{path} holds the architecture {source.model_type!r}, which this version does not export "
            f"(supported: {', '.join(SUPPORTED)})"
        )
    return Checkpoint(
        name=path.name,
        model_type=source.model_type,
        weight_bytes=source.weight_bytes,
        tokenizer=source.tokenizer(),
        chat_template=source.chat_template,
        bos_id=source.bos_id,
        eos_ids=source.eos_ids,
        add_bos=source.add_bos,
        licence=source.licence,
        source_fp=source.fingerprint(),
        load=lambda: load_model(source.pretrained_arguments()),
    )


def load_model(arguments: Mapping[str, Any]) -> PreTrainedModel:
    """The float32 model in evaluation mode, quietly, from local files only."""
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        **arguments, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    return model.eval()
