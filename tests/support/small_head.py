"""A head of random weights for the tiny target, as `train-draft` leaves one, and a draft bundle of it."""

from __future__ import annotations

from pathlib import Path

import torch

from starsd_edge.bundles.fingerprints import feature_fingerprint
from starsd_edge.heads.draft_bundle import DraftBundle
from starsd_export.checkpoint import open_checkpoint
from starsd_export.draft_heads.bundle import export_draft_bundle
from starsd_export.draft_heads.trained import FROM_TARGET, HeadRecord, TrainedHead, write_trained
from starsd_export.training.pipeline import head_spec
from tests.support.tiny_llama import tiny_model, write_safetensors

DRAFT_VOCABULARY = 96


def write_small_head(directory: Path, target: Path) -> Path:
    """For every third token of the target."""
    spec = head_spec(tiny_model(), DRAFT_VOCABULARY)
    draw = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=draw) * 0.2
        for name, shape in spec.tensor_shapes().items()
        if name not in FROM_TARGET
    }
    feature_fp = feature_fingerprint(open_checkpoint(target).source_fp, "last_hidden", spec.hidden_size)
    record = HeadRecord(1, spec, feature_fp, {"tokens": 3})
    write_trained(directory, TrainedHead(record, tensors, torch.arange(DRAFT_VOCABULARY) * 3))
    return directory


def small_draft_bundle(directory: Path, weights: str) -> DraftBundle:
    """Made in a directory that is there."""
    for part in ("target", "head"):
        (directory / part).mkdir()
    target = write_safetensors(directory / "target")
    head = write_small_head(directory / "head", target)
    return export_draft_bundle(target, str(head), directory / "bundle", weights)
