"""Reading a checkpoint: what it is, what is in it, and the transformers model that it makes.

Two layouts are taken: a GGUF file, and a directory with config.json, tokenizer.json and safetensors files. Pickles are
refused unopened: loading one runs whatever its maker put in.

transformers fills what a checkpoint lacks with random numbers and drops what it does not know, with a warning. Here
both are errors, because either makes another model than the checkpoint's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import tokenizers
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from starsd_edge.bundles.manifest import TextRules
from starsd_edge.errors import StarsdError, UsageError, one_line
from starsd_edge.text.tokenizer import Tokenizer, named_by_id
from starsd_export.chat_files import choose_template, ends_of_answers
from starsd_export.families import Limits, build_config, fix_rope, read_limits, require_family, unstated
from starsd_export.gguf_source import GgufSource
from starsd_export.safetensors_source import SafetensorsSource

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
        text: ids and texts that belong to the model, without a name for the template's file.
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
    text: TextRules
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
    contents = source.config()
    config = build_config(contents, path)
    limits = read_limits(config, path)
    _require_ids(source, config.vocab_size)
    tokenizer, left_out = _with_rows(source.tokenizer(), config.vocab_size, path)
    template, notes = choose_template(source.chat_templates(), chat_template)
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    rules = TextRules(source.bos_id, source.eos_ids, source.add_bos)
    special_tokens = source.special_tokens(named_by_id(backend, rules))
    rules = msgspec.structs.replace(rules, special_tokens=special_tokens)
    ends, said = ends_of_answers(Tokenizer.of(backend, rules, template), special_tokens, also_end)
    return Checkpoint(
        name=path.name,
        config=config,
        limits=replace(limits, notes=(*limits.notes, *unstated(contents, config), *left_out)),
        weight_bytes=source.weight_bytes,
        tokenizer=tokenizer,
        chat_template=template,
        text=msgspec.structs.replace(rules, eos_ids=ends),
        notes=[*notes, *said],
        licence=source.licence,
        source_fp=source.fingerprint(),
        load=lambda: _load(source, config, path),
    )


def checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint, its chat template included."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(checkpoint.tokenizer))
    return Tokenizer.of(backend, checkpoint.text, checkpoint.chat_template)


def require_memory(what_takes: str, needed: float, instead: str) -> None:
    """Check the memory of this machine.

    Args:
        what_takes: the beginning of the message, like "the export needs".
        needed: bytes.
        instead: what to do beside closing other programs.

    Raises:
        StarsdError: says how much is missing.
    """
    free = psutil.virtual_memory().available
    if free < needed:
        raise StarsdError(
            f"{what_takes} about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: close other "
            f"programs, or {instead}"
        )


def _require_ids(source: GgufSource | SafetensorsSource, rows: int) -> None:
    """Refuse ids that the model has no row for, which would be found out in the middle of an answer."""
    stated: dict[str, Sequence[int | None]] = {"bos_token_id": [source.bos_id], "eos_token_id": source.eos_ids}
    for key, ids in stated.items():
        for token in ids:
            if token is not None and not 0 <= token < rows:
                raise UsageError(
                    f"{source.where(key)} has {token} as {key}, which is no id of its vocabulary of {rows}: "
                    "correct it, or leave that key out"
                )


def _with_rows(tokenizer: Mapping[str, Any], rows: int, path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """The tokenizer without added tokens that the model has no row for, and a line that says so.

    Such tokens (a padding token, mostly) belong to no text; transformers fails where one is in a prompt.

    Raises:
        UsageError: pieces of ordinary text have no row either, or there are none at all.
    """
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer.get("added_tokens") or []
    pieces = (
        dict(vocabulary) if isinstance(vocabulary, Mapping) else {name: at for at, (name, _) in enumerate(vocabulary)}
    )
    beyond = [token["content"] for token in added if token["id"] >= rows]
    if not pieces and not added:
        raise UsageError(f"{path} has a tokenizer without any token: fetch the checkpoint again")
    kept = {**tokenizer, "added_tokens": [token for token in added if token["id"] < rows]} if beyond else tokenizer
    try:
        written = tokenizers.Tokenizer.from_str(json.dumps(kept)).encode("a").ids
    except Exception:  # the library raises nothing more precise
        written = [rows]
    highest = max([*(pieces[piece] for piece in pieces if piece not in beyond), *written], default=0)
    if highest >= rows:
        raise UsageError(
            f"{path} has a tokenizer whose ids reach {highest} and a model with {rows} rows: give the model the "
            "tokenizer that belongs to it"
        )
    if not beyond:
        return tokenizer, []
    said = f"{beyond[0]!r} and {len(beyond) - 1} more" if len(beyond) > 1 else f"{beyond[0]!r}"
    return kept, [
        f"the tokenizer's {said} is left out and read as plain text: the model of {rows} rows has none for it"
    ]


def _load(source: GgufSource | SafetensorsSource, config: PreTrainedConfig, path: Path) -> PreTrainedModel:
    model = load_model(config, source.tensors(), path)
    fix_rope(model, source.rope_factors())
    return model


def load_model(config: PreTrainedConfig, tensors: Mapping[str, torch.Tensor], path: Any) -> PreTrainedModel:
    """The float32 model in evaluation mode.

    Args:
        config: of a supported family.
        tensors: by transformers' names.
        path: of the checkpoint, for messages.

    Raises:
        UsageError: names tensors that are missing, of the wrong shape, or without a place in the model; or transformers
            makes no model of the configuration.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    family = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    try:
        model, found = family.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported below, with their names
            local_files_only=True,
        )
    except Exception as error:  # the classes raise whatever a number leads them to
        raise UsageError(
            f"{path} has a configuration that {family.__name__} cannot be made of ({type(error).__name__}: "
            f"{one_line(error)})"
        ) from None
    require_fit(path, family.__name__, found["missing_keys"], found["mismatched_keys"], found["unexpected_keys"])
    return model.eval()


_NAMED = 3
"""Tensors named in a message; the rest are counted."""


def require_fit(
    path: Any,
    place: str,
    missing: Iterable[str],
    mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]],
    unexpected: Iterable[str],
) -> None:
    """Refuse a checkpoint whose tensors are not those of its configuration.

    Args:
        path: of the checkpoint, for the message.
        place: what its tensors are to have a place in.
        mismatched: name, shape and wanted shape.

    Raises:
        UsageError: names the tensors.
    """
    shapes = (f"{name} {list(given)} instead of {list(wanted)}" for name, given, wanted in mismatched)
    problems = [
        *_problem("lacks", missing),
        *_problem("has in another shape than its configuration says", shapes),
        *_problem(f"has, without a place in {place},", unexpected),
    ]
    if problems:
        raise UsageError(f"{path} does not fit its configuration: it {'; it '.join(problems)}")


def _problem(what: str, names: Iterable[str]) -> list[str]:
    names = sorted(names)
    if not names:
        return []
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what} {', '.join(names[:_NAMED])}{rest}"]


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 hex of names, shapes and values; numbers of any floating-point type count as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.float() if tensor.is_floating_point() else tensor
        digest.update(f"{name} {list(values.shape)}\0".encode())
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()
