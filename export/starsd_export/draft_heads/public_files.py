"""Files of a published head: config.json beside safetensors (sharded or not) or a pytorch_model.bin.

A pickle can run code when it is read. torch's reader for weights alone takes tensors and plain containers and refuses
everything else; what it refuses is not read in any other way.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from starsd_edge.errors import UsageError
from starsd_export.checkpoint_files import read_json
from starsd_export.safetensors_source import SafetensorsSource

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
