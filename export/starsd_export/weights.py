"""A checkpoint's tensors into transformers' model class, each accounted for.

transformers fills what a checkpoint lacks with random numbers and drops what it does not know, with a warning. Here
both are errors, because either makes another model than the checkpoint's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from starsd_edge.errors import UsageError


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
        said = " ".join(str(error).split())
        raise UsageError(
            f"{path} has a configuration that {family.__name__} cannot be made of ({type(error).__name__}: {said})"
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
