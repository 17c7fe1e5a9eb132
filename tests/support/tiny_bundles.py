"""Bundles of a tiny model, one of each kind that `export` makes.

They are exported once for each state of the code (see `tests.support.bundle_store`). Where there is no torch,
`TINY_BUNDLES` names a directory into which `python -m tests.support.tiny_bundles DIRECTORY` has written them with a
Python that has one.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle, load_bundle
from tests.support.bundle_store import tiny_copy

KINDS = {"fp32": ("fp32", "float16"), "fp32-kv32": ("fp32", "float32"), "int8": ("int8", "float16")}
"""Weights and KV dtype by name."""
READY = "TINY_BUNDLES"


def tiny_bundles_at(place: Path) -> dict[str, Bundle]:
    """By the names of `KINDS`: those that are ready, else new ones in this directory."""
    ready = os.environ.get(READY)
    return {name: load_bundle(Path(ready) / name) for name in KINDS} if ready else export_tiny_bundles(place)


def export_tiny_bundles(place: Path) -> dict[str, Bundle]:
    """Export them into a directory, in the place of older ones."""
    from starsd_export.pipeline import ExportOptions, export_bundle
    from tests.support.tiny_llama import write_safetensors

    checkpoint = write_safetensors(place / "checkpoint")

    def kept(name: str, weights: str, kv_dtype: str) -> Bundle:
        shutil.rmtree(place / name, ignore_errors=True)
        options = ExportOptions(weights, kv_dtype)
        return tiny_copy(
            place / name, f"tiny-{name}", load_bundle, lambda made: export_bundle(checkpoint, made, options)
        )

    return {name: kept(name, *kind) for name, kind in KINDS.items()}


if __name__ == "__main__":
    export_tiny_bundles(Path(sys.argv[1]))
