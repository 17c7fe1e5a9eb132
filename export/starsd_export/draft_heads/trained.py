"""A head as `train-draft` leaves it: what was trained, and for which features. Embedding and output matrix are the
target's own rows and are cut from its checkpoint when a draft bundle is made.

    head.json           this schema
    head.safetensors    float16 tensors by our names, and the draft vocabulary
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.errors import BundleError, UsageError
from starsd_edge.heads.draft_bundle import load_draft_bundle
from starsd_edge.heads.engine import HeadSpec

HEAD_TENSORS = "head.safetensors"
DRAFT_IDS = "draft_ids"
FROM_TARGET = ("embed.weight", "lm_head.weight")
"""Tensors that are not trained."""


class HeadRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """head.json."""

    schema_version: Literal[1]
    spec: HeadSpec
    feature_fp: str
    """Of the features that the head was trained on."""
    trained: dict[str, Any]
    """How, and what came of it: for people."""


@dataclass(frozen=True)
class TrainedHead:
    """A head without embedding and output matrix.

    Attributes:
        tensors: by our names, float32.
        draft_ids: int64 [draft vocabulary], ascending ids of the target's vocabulary.
    """

    record: HeadRecord
    tensors: Mapping[str, torch.Tensor]
    draft_ids: torch.Tensor


def is_trained_head(path: Path) -> bool:
    """Whether a directory holds a head of ours."""
    return (path / HEAD_JSON).is_file()


def write_trained(directory: Path, head: TrainedHead) -> None:
    """Write the two files."""
    tensors = {name: tensor.to(torch.float16).contiguous() for name, tensor in head.tensors.items()}
    save_file({**tensors, DRAFT_IDS: head.draft_ids.to(torch.int32)}, directory / HEAD_TENSORS)
    write_manifest(directory, head.record, HEAD_JSON)


def read_trained(directory: Path) -> TrainedHead:
    """Read a head of ours.

    Raises:
        UsageError: a file is damaged; tensors that are missing, too much or of another shape are named.
    """
    try:
        record = msgspec.json.decode((directory / HEAD_JSON).read_bytes(), type=HeadRecord)
        tensors = load_file(directory / HEAD_TENSORS)
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise UsageError(f"{directory} holds no head that can be read ({error}): train it again") from error
    shapes = {name: shape for name, shape in record.spec.tensor_shapes().items() if name not in FROM_TARGET}
    shapes[DRAFT_IDS] = (record.spec.draft_vocab_size,)
    wrong = sorted(
        name for name in {*shapes, *tensors} if name not in tensors or tuple(tensors[name].shape) != shapes.get(name)
    )
    if wrong:
        raise UsageError(f"{directory / HEAD_TENSORS} does not fit {HEAD_JSON}: see {', '.join(wrong[:3])}")
    draft_ids = tensors.pop(DRAFT_IDS).long()
    if not bool((draft_ids[1:] > draft_ids[:-1]).all()) or not 0 <= int(draft_ids[0]) <= int(draft_ids[-1]) < (
        record.spec.vocab_size
    ):
        raise UsageError(f"{directory / HEAD_TENSORS} holds ids that the target's vocabulary does not have")
    return TrainedHead(record, {name: tensor.float() for name, tensor in tensors.items()}, draft_ids)


SHIPPED = "shipped"
"""In place of a directory: the head of ours that was trained for the target's model."""
SHIPPED_HEADS = Path(__file__).parent / "shipped"
HEAD_JSON = "head.json"


def why_make_shipped(path: Path, model: str) -> str:
    """Why the draft bundle at this place has to be made, or made again; "" where it is whole and holds the head that
    comes for this model.
    """
    if not path.exists():
        return "there is none yet"
    try:
        manifest = load_draft_bundle(path).manifest
    except BundleError:
        return "the one that is there is damaged, or of another version"
    shipped = json.loads((SHIPPED_HEADS / model / HEAD_JSON).read_text(encoding="utf-8"))
    return "" if manifest.trained == shipped["trained"] else "the one that is there holds an older head"
