"""Which features a target's graph gives and a head reads, and whether the two fit: by the fingerprint of the features
a head and its targets find each other. The head that a draft bundle is made of is ours or a published one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from starsd_edge.bundles.fingerprints import feature_fingerprint
from starsd_edge.bundles.manifest import FeatureKind
from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadKind
from starsd_edge.runtime.torch_features import FusedStates, Fusion
from starsd_export.checkpoint import Checkpoint, digest_tensors
from starsd_export.draft_heads.public import PublicHead, published_kind, read_public_head
from starsd_export.draft_heads.trained import (
    SHIPPED,
    SHIPPED_HEADS,
    HeadRecord,
    TrainedHead,
    is_trained_head,
    read_trained,
)


@dataclass(frozen=True)
class TargetFeatures:
    """What comes out of a graph as `features`.

    Attributes:
        width: numbers in a row.
        fused: what makes them of the kind "fused_states".
        fusion_fp: sha256 of its weights, as float32.
        head: directory name of the head that brought it.
        note: for people, which layers it reads and who says so.
    """

    kind: FeatureKind
    width: int
    fused: FusedStates | None = None
    fusion_fp: str = ""
    head: str = ""
    note: str = ""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose inputs are fused, as EAGLE counts them."""
        return () if self.fused is None else self.fused.taps

    def fingerprint(self, source_fp: str) -> str:
        """feature_fp of every export of a checkpoint that gives these."""
        return feature_fingerprint(source_fp, self.kind, self.width, self.taps, self.fusion_fp)


def last_hidden(config: PreTrainedConfig) -> TargetFeatures:
    """The hidden state after the final norm: what EAGLE-1 and EAGLE-2 heads read."""
    return TargetFeatures("last_hidden", config.hidden_size)


def features_for(directory: Path, config: PreTrainedConfig) -> TargetFeatures:
    """What the head in a directory reads of a target with this configuration.

    Raises:
        UsageError: it holds no EAGLE-3 head, or one for another target.
    """
    if not directory.is_dir():
        raise UsageError(f"no head at {directory}: give the directory of a published EAGLE-3 head")
    if is_trained_head(directory):
        raise _needs_none(directory)
    return fused_states(read_public_head(directory), directory, config)


def fused_states(head: PublicHead, directory: Path, config: PreTrainedConfig) -> TargetFeatures:
    """What a published head reads of a target with this configuration.

    Raises:
        UsageError: it is no EAGLE-3 head, or one for another target.
    """
    if head.fusion is None or head.taps is None:
        raise _needs_none(directory)
    require_same_model(directory, head.fusion.target_hidden_size, head.spec.vocab_size, config)
    taps = head.taps.resolve(config.num_hidden_layers)
    name = directory.resolve().name
    return TargetFeatures(
        kind="fused_states",
        width=head.spec.hidden_size,
        fused=FusedStates(taps.ids, head.fusion),
        fusion_fp=_fusion_fingerprint(head.fusion),
        head=name,
        note=f"the head in {name} reads {taps.origin}",
    )


def require_same_model(directory: Path, width: int, vocab_size: int, config: PreTrainedConfig) -> None:
    """Refuse a head for a model of another width or vocabulary.

    Raises:
        UsageError: names both.
    """
    if (width, vocab_size) != (config.hidden_size, config.vocab_size):
        raise UsageError(
            f"the head in {directory} is for a model of width {width} with {vocab_size} tokens, "
            f"and this one has {config.hidden_size} and {config.vocab_size}"
        )


def _needs_none(directory: Path) -> UsageError:
    return UsageError(
        f"{directory} holds an EAGLE-1 or EAGLE-2 head, whose features every bundle gives: leave --features-for out"
    )


def _fusion_fingerprint(fusion: Fusion) -> str:
    tensors = {"weight": fusion.weight}
    if fusion.bias is not None:
        tensors["bias"] = fusion.bias
    if fusion.norm is not None:
        tensors |= {"norm": fusion.norm, "eps": torch.tensor([fusion.eps])}
    return digest_tensors(tensors)


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
    if trained.record.feature_fp != own_feature_fp(checkpoint):
        raise UsageError(
            f"the head in {directory} was trained for the features of another model than {checkpoint.name}: "
            "train one for it with `starsd-edge train-draft`"
        )
    return FittingHead(trained, directory.resolve().name)


def _shipped_head(checkpoint: Checkpoint) -> TrainedHead:
    """The head in this program that was trained for a checkpoint."""
    wanted = own_feature_fp(checkpoint)
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


def own_feature_fp(checkpoint: Checkpoint) -> str:
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
