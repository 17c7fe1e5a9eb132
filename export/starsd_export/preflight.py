"""Is there room? Asked before the work begins, because an export that dies at the end has cost minutes."""

from __future__ import annotations

from pathlib import Path

import psutil

from starsd_edge.bundles.integrity import require_free_space
from starsd_edge.errors import StarsdError

# Peaks seen: 0.57 GB with a model of no size; with the default model (538 MB of float32) 2.36 GB for fp32 weights and
# 2.15 GB for int8, which is 3.3 and 2.9 bytes for each byte of the weights, 2.59 GB (3.7) for float16 for TensorRT and
# 2.82 GB (4.1) for int4 with its search.
# Larger models were not measured.
_PEAK_PER_WEIGHT_BYTE = 4.3
_LIBRARIES = 600 << 20
_GRAPH_AND_TOKENIZER = 32 << 20
# Of the weights as float32, at most: int8 keeps a float32 embedding, int4 may keep a float16 one.
_STORED_SHARE = {"fp32": 1.0, "fp16": 0.5, "int8": 0.6, "int4": 0.4}


def require_room(destination: Path, weight_bytes: int, weights: str) -> None:
    """Check the disk below `destination` and the memory.

    Args:
        weight_bytes: size of the weights as float32.
        weights: as `ExportOptions.weights`.

    Raises:
        StarsdError: says how much is missing.
    """
    stored = int(weight_bytes * _STORED_SHARE[weights])
    require_free_space(destination, stored + _GRAPH_AND_TOKENIZER, "the bundle")
    needed = _PEAK_PER_WEIGHT_BYTE * weight_bytes + _LIBRARIES
    free = psutil.virtual_memory().available
    if free < needed:
        raise StarsdError(
            f"the export needs about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: "
            "close other programs, or export on a larger machine and copy the bundle"
        )
