"""The checkpoint that a bundle was made from, as a yardstick for its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
from transformers import PreTrainedModel

from starsd_edge.bundles.manifest import Manifest
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.parity.passes import Observation, Values
from starsd_export.checkpoint import open_checkpoint
from starsd_export.parity import Stock
from starsd_export.reference import run_stock

_PEAK_PER_WEIGHT_BYTE = 1.5
"""Of memory, while a model is loaded and runs a few short prompts."""


@dataclass(frozen=True)
class Source:
    """The model that a bundle was made from, loaded.

    Attributes:
        stock: what it says in the place of any pass of the bundle's graph. Features that a head has fused are left out:
            the head is not in the checkpoint.
    """

    model: PreTrainedModel
    stock: Callable[[Observation], Values]


def open_source(path: Path, manifest: Manifest) -> Source:
    """Load a checkpoint.

    Args:
        path: a GGUF file or a safetensors directory.
        manifest: of the bundle.

    Raises:
        UsageError: no checkpoint, or not the one that the bundle was made from.
        StarsdError: no room.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.source_fp != manifest.fingerprints.source_fp:
        raise UsageError(
            f"{path} is not the checkpoint that {manifest.name} was made from ({manifest.source}; the fingerprints "
            "differ): give that one"
        )
    needed, free = _PEAK_PER_WEIGHT_BYTE * checkpoint.weight_bytes, psutil.virtual_memory().available
    if free < needed:
        raise StarsdError(
            f"the checkpoint takes about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: close other "
            "programs, or check on a larger machine"
        )
    model = checkpoint.load()
    stock = Stock(partial(run_stock, model, kv_dtype=manifest.graph.kv_dtype))
    if manifest.graph.feature_kind == "fused_states":
        return Source(model, lambda observation: replace(stock(observation), features=None))
    return Source(model, stock)
