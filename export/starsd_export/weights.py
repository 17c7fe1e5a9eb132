"""A checkpoint's tensors into transformers' model class, each accounted for.

transformers fills what a checkpoint lacks with random numbers and drops what it does not know, with a warning. Here
both are errors, because either makes another model than the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from starsd_edge.errors import UsageError
from starsd_export.tensor_fit import require_fit


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
