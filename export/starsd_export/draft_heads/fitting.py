"""The head that a draft bundle is made of: ours or published, and whether it fits the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadKind
from starsd_export.checkpoint import Checkpoint
from starsd_export.draft_heads.public import PublicHead, published_kind, read_public_head
from starsd_export.draft_heads.trained import (
    SHIPPED,
    SHIPPED_HEADS,
    HeadRecord,
    TrainedHead,
    is_trained_head,
    read_trained,
)
from starsd_export.target_features import fused_states, last_hidden, require_same_model


@dataclass(frozen=True)
class FittingHead:
    """A head that goes on from the target's features.

    Attributes:
        head: its tensors; embedding and output matrix among them where it brings its own.
        name: of its directory, or `SHIPPED`.
        notes: a line for each thing that a user who knows the head would not expect.
    """

    head: TrainedHead
    name: str
    notes: tuple[str, ...] = ()


def head_kind(head: str) -> HeadKind:
    """Of which kind a head is, without a look at more than its configuration and the names of its tensors.

    Raises:
        UsageError: it is published and of none that is known.
    """
    directory = Path(head)
    if head == SHIPPED or not directory.is_dir() or is_trained_head(directory):
        return "eagle"
    return published_kind(directory)


def find_head(head: str, checkpoint: Checkpoint) -> FittingHead:
    """The head that `--draft-head` names.

    Raises:
        UsageError: there is none, or it is for another target.
    """
    if head == SHIPPED:
        return FittingHead(_shipped_head(checkpoint), SHIPPED)
    directory = Path(head)
    if not directory.is_dir():
        raise UsageError(
            f"no head at {directory}: give the directory of a published head or of one that "
            f"`starsd-edge train-draft` wrote, or {SHIPPED}"
        )
    if not is_trained_head(directory):
        return _published_head(directory, checkpoint)
    trained = read_trained(directory)
    if trained.record.feature_fp != _feature_fp(checkpoint):
        raise UsageError(
            f"the head in {directory} was trained for the features of another model than {checkpoint.name}: "
            "train one for it with `starsd-edge train-draft`"
        )
    return FittingHead(trained, directory.resolve().name)


def _shipped_head(checkpoint: Checkpoint) -> TrainedHead:
    """The head in this program that was trained for a checkpoint."""
    wanted = _feature_fp(checkpoint)
    names = []
    for directory in sorted(path for path in SHIPPED_HEADS.glob("*") if is_trained_head(path)):
        head = read_trained(directory)
        if head.record.feature_fp == wanted:
            return head
        names.append(directory.name)
    raise UsageError(
        f"no head for {checkpoint.name} comes with this program (there is one for {', '.join(names) or 'no model'}): "
        "train one with `starsd-edge train-draft`"
    )


def _feature_fp(checkpoint: Checkpoint) -> str:
    """What the heads that we train go on from."""
    return last_hidden(checkpoint.config).fingerprint(checkpoint.source_fp)


def _published_head(directory: Path, checkpoint: Checkpoint) -> FittingHead:
    head, config = read_public_head(directory), checkpoint.config
    if head.spec.kind == "eagle":
        require_same_model(directory, head.spec.hidden_size, head.spec.vocab_size, config)
        features = last_hidden(config)
    else:
        features = fused_states(head, directory, config)
    name = directory.resolve().name
    feature_fp = features.fingerprint(checkpoint.source_fp)
    record = HeadRecord(1, head.spec, feature_fp, {"published": name})
    trained = TrainedHead(record, _own_tensors(head), torch.from_numpy(head.draft_ids))
    return FittingHead(trained, name, (*filter(None, [features.note]), *head.notes))


def _own_tensors(head: PublicHead) -> dict[str, torch.Tensor]:
    """As float32. The embedding that an EAGLE-1 head may bring is a copy of the target's, which is taken itself."""
    copied = {"embed.weight"} if head.spec.kind == "eagle" else set()
    return {name: tensor.float() for name, tensor in head.tensors.items() if name not in copied}
