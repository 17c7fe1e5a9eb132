"""Reading a checkpoint: what it is, what is in it, and the transformers model that it makes.

Two layouts are taken: a GGUF file, and a directory with config.json, tokenizer.json and safetensors files. Pickles are
refused unopened: loading one runs whatever its maker put in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from transformers import PreTrainedConfig, PreTrainedModel

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import UsageError
from starsd_edge.text.tokenizer import Tokenizer, named_by_id
from starsd_export.chat_files import choose_template, ends_of_answers
from starsd_export.families import Limits, build_config, fix_rope, read_limits, require_family
from starsd_export.gguf_source import GgufSource
from starsd_export.safetensors_source import SafetensorsSource
from starsd_export.weights import load_model

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """Everything the exporter needs of a checkpoint, its weights not yet loaded.

    Attributes:
        name: file or directory name, without the path.
        config: transformers' configuration, of a supported family.
        limits: how far the exported graph can go.
        weight_bytes: size of the weights as float32, before any quantisation.
        tokenizer: contents of a tokenizer.json.
        chat_template: jinja source, or None.
        special_tokens: what a template finds as `bos_token` and so on.
        bos_id, eos_ids, add_bos: ids that belong to the model.
        notes: one line for each thing about its text that a user would not expect.
        licence: as the checkpoint states it, "unknown" where it does not.
        source_fp: fingerprint of the weights and the architecture.
        load: makes the float32 model; `load()` may take a while and much memory.
    """

    name: str
    config: PreTrainedConfig
    limits: Limits
    weight_bytes: int
    tokenizer: Mapping[str, Any]
    chat_template: str | None
    special_tokens: Mapping[str, str]
    bos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    notes: list[str]
    licence: str
    source_fp: str
    load: Callable[[], PreTrainedModel]


def open_checkpoint(path: Path, chat_template: str | None = None, also_end: Sequence[str] = ()) -> Checkpoint:
    """Look at a checkpoint without loading its weights.

    Args:
        path: a GGUF file or a safetensors directory.
        chat_template: name of one of its chat templates; None takes the default one.
        also_end: texts of tokens that end an answer beside those that it lists.

    Raises:
        UsageError: no checkpoint, a pickle, a damaged file, an architecture or a setting that is not supported, or no
            such template or token.
        BundleError: its chat template is broken.
    """
    if path.suffix in _PICKLES:
        raise UsageError(f"{path} is a pickle, which can run code when it is read: convert it to safetensors first")
    source = GgufSource(path) if path.is_file() else SafetensorsSource(path)
    require_family(source.model_type, path)
    config = build_config(source.config(), path)
    template, notes = choose_template(source.chat_templates(), chat_template)
    contents = source.tokenizer()
    backend = tokenizers.Tokenizer.from_str(json.dumps(contents))
    rules = TextRules(source.bos_id, source.eos_ids, source.add_bos)
    special_tokens = source.special_tokens(named_by_id(backend, rules))
    rules = msgspec.structs.replace(rules, special_tokens=special_tokens)
    ends, said = ends_of_answers(Tokenizer.of(backend, rules, template), special_tokens, also_end)
    return Checkpoint(
        name=path.name,
        config=config,
        limits=read_limits(config, path),
        weight_bytes=source.weight_bytes,
        tokenizer=contents,
        chat_template=template,
        special_tokens=special_tokens,
        bos_id=rules.bos_id,
        eos_ids=ends,
        add_bos=rules.add_bos,
        notes=[*notes, *said],
        licence=source.licence,
        source_fp=source.fingerprint(),
        load=lambda: _load(source, config, path),
    )


def checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint, its chat template included."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(checkpoint.tokenizer))
    special_tokens = dict(checkpoint.special_tokens)
    rules = TextRules(checkpoint.bos_id, checkpoint.eos_ids, checkpoint.add_bos, special_tokens=special_tokens)
    return Tokenizer.of(backend, rules, checkpoint.chat_template)


def _load(source: GgufSource | SafetensorsSource, config: PreTrainedConfig, path: Path) -> PreTrainedModel:
    model = load_model(config, source.tensors(), path)
    fix_rope(model, source.rope_factors())
    return model
