"""One hash of a set of tensors, whatever file and type they came in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 hex of names, shapes and values; numbers of any floating-point type count as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.float() if tensor.is_floating_point() else tensor
        digest.update(f"{name} {list(values.shape)}\0".encode())
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()
