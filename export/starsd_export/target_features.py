"""Which features a target's graph gives, and the fingerprint by which a head and its targets find each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from starsd_edge.bundles.fingerprints import feature_fingerprint
from starsd_edge.bundles.manifest import FeatureKind
from starsd_edge.errors import UsageError
from starsd_edge.runtime.torch_features import FusedStates, Fusion
from starsd_export.draft_heads.public import PublicHead, read_public_head
from starsd_export.draft_heads.trained import is_trained_head
from starsd_export.weights import digest_tensors


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
