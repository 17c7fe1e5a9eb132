"""A checkpoint's tensors into transformers' model class, each accounted for.

transformers fills what a checkpoint lacks with random numbers and drops what it does not know, with a warning. Here
both are errors, because either makes another model than the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from starsd_edge.errors import UsageError

_NAMED = 3
"""Tensors named in a message; the rest are counted."""


def load_model(config: PreTrainedConfig, tensors: Mapping[str, torch.Tensor], path: Any) -> PreTrainedModel:
    """The float32 model in evaluation mode.

    Args:
        config: of a supported family.
        tensors: by transformers' names.
        path: of the checkpoint, for messages.

    Raises:
        UsageError: names tensors that are missing, of the wrong shape, or without a place in the model.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    family = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model, found = family.from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are reported below, with their names
        local_files_only=True,
    )
    shapes = (f"{name} {list(given)} instead of {list(wanted)}" for name, given, wanted in found["mismatched_keys"])
    problems = [
        *_problem("lacks", found["missing_keys"]),
        *_problem("has in another shape than its configuration says", shapes),
        *_problem(f"has, without a place in {family.__name__},", found["unexpected_keys"]),
    ]
    if problems:
        raise UsageError(f"{path} does not fit its configuration: it {'; it '.join(problems)}")
    return model.eval()


def _problem(what: str, names: Iterable[str]) -> list[str]:
    names = sorted(names)
    if not names:
        return []
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what} {', '.join(names[:_NAMED])}{rest}"]
