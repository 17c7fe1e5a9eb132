"""Which id of the target each guess of an EAGLE-3 head means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.errors import UsageError
from starsd_edge.heads.spec import HeadSpec
from starsd_export.draft_heads.public_names import KEPT, TO_TARGET


def read_draft_ids(
    path: Any, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> npt.NDArray[np.int64]:
    """int64 [draft vocabulary].

    Args:
        tensors: by the names here, of the right shapes. d2t holds what is added to each guess, and not ids; t2d is a
            mask of the target's ids that are among the guesses.
        names: in the file, by the names here.

    Raises:
        UsageError: ids outside the target's vocabulary, twice the same, or others than the mask has.
    """
    own = np.arange(spec.draft_vocab_size, dtype=np.int64)
    ids = own + _offsets(path, tensors, names) if TO_TARGET in tensors else own
    table = f"{path} holds a {names.get(TO_TARGET, TO_TARGET)}"
    if ids.min() < 0 or ids.max() >= spec.vocab_size or len(np.unique(ids)) != len(ids):
        raise UsageError(f"{table} that maps guesses to no ids, or several to one: fetch the head again")
    if spec.draft_vocab_size == spec.vocab_size and not np.array_equal(ids, own):
        raise UsageError(f"{table} that moves ids although the head guesses all of them: fetch the head again")
    if KEPT in tensors:
        kept = np.flatnonzero(tensors[KEPT].bool().numpy())
        if not np.array_equal(kept, np.sort(ids)):
            raise UsageError(f"{table} and a {names[KEPT]} that keep different ids: fetch the head again")
    return ids


def _offsets(path: Any, tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> npt.NDArray[np.int64]:
    offsets = tensors[TO_TARGET]
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        raise UsageError(f"{path} holds {names[TO_TARGET]} as {offsets.dtype} and not as whole numbers: fetch it again")
    found: npt.NDArray[np.int64] = offsets.long().numpy()
    return found
