"""From a trained head and its target's checkpoint to a draft bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from transformers import PreTrainedConfig

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.bundles.fingerprints import feature_fingerprint
from starsd_edge.bundles.integrity import hash_files, staged_directory
from starsd_edge.errors import UsageError
from starsd_edge.heads.draft_bundle import (
    DRAFT_IDS_NAME,
    DRAFT_KIND,
    EMBEDDING_NAME,
    GRAPH_NAME,
    DraftBundle,
    DraftManifest,
    load_draft_bundle,
)
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.checkpoint import Checkpoint, open_checkpoint
from starsd_export.draft_heads.graph import trace_head
from starsd_export.draft_heads.public import read_public_head
from starsd_export.draft_heads.public_write import write_public_head
from starsd_export.draft_heads.trained import HeadRecord, TrainedHead, is_trained_head, read_trained
from starsd_export.pipeline import WEIGHTS, require_kind, require_replaceable, versions

SHIPPED = "shipped"
"""In place of a directory: the head of ours that was trained for the target's model."""
_SHIPPED_HEADS = Path(__file__).parent / "shipped"
DRAFT_STEPS = ("reading the head", "loading the target's weights", "tracing the head", "writing")


def export_draft_bundle(
    source: Path,
    head: str,
    destination: Path,
    weights: str = "int8",
    progress: Callable[[str], None] = lambda step: None,
) -> DraftBundle:
    """Make a draft bundle.

    Args:
        source: the target's checkpoint.
        head: directory of a head that `train-draft` wrote, or of a published EAGLE-1 or EAGLE-2 head; or `SHIPPED`.
        weights: "int8" (by blocks) or "fp32".

    Raises:
        UsageError: the head is for another target or of a kind that no target has features for, or a file cannot be
            used.
    """
    require_kind("--weights", weights, WEIGHTS)
    destination = destination.resolve()
    require_replaceable(destination)
    progress(DRAFT_STEPS[0])
    checkpoint = open_checkpoint(source)
    trained = find_head(head, checkpoint)
    spec = trained.record.spec
    progress(DRAFT_STEPS[1])
    model = checkpoint.load()
    embedding = model.get_input_embeddings().weight.detach()
    output = model.get_output_embeddings().weight.detach()[trained.draft_ids]
    progress(DRAFT_STEPS[2])
    whole = TorchHead(spec, {"embed.weight": embedding, "lm_head.weight": output, **trained.tensors})
    graph = trace_head(whole, int8=weights == "int8")
    progress(DRAFT_STEPS[3])
    with staged_directory(destination) as staging:
        onnx_ir.save(graph, staging / GRAPH_NAME, external_data=f"{GRAPH_NAME}.data")
        np.save(staging / EMBEDDING_NAME, embedding.to(torch.float16).numpy(), allow_pickle=False)
        np.save(staging / DRAFT_IDS_NAME, trained.draft_ids.to(torch.int32).numpy(), allow_pickle=False)
        manifest = DraftManifest(
            schema_version=1,
            kind=DRAFT_KIND,
            name=destination.name,
            created_by=versions(),
            source=f"{head if head == SHIPPED else Path(head).resolve().name} for {checkpoint.name}",
            licence=checkpoint.licence,
            spec=spec,
            weights="int8" if weights == "int8" else "fp32",
            fingerprint=_fingerprint(trained),
            accepts=[trained.record.feature_fp],
            trained=trained.record.trained,
            files=hash_files(staging),
        )
        write_manifest(staging, manifest)
    return load_draft_bundle(destination)


def find_head(head: str, checkpoint: Checkpoint) -> TrainedHead:
    """A head for a checkpoint.

    Args:
        head: as for `export_draft_bundle`.

    Raises:
        UsageError: there is none, or it is for another target.
    """
    return _shipped_head(checkpoint) if head == SHIPPED else _read_head(Path(head), checkpoint)


def write_public(checkpoint: Checkpoint, head: TrainedHead, directory: Path) -> None:
    """Write a head of ours in the public EAGLE layout, the target's embedding with it, in float16."""
    embedding = checkpoint.load().get_input_embeddings().weight.detach()
    tensors = {name: tensor.to(torch.float16) for name, tensor in {**head.tensors, "embed.weight": embedding}.items()}
    ids = {"bos_token_id": checkpoint.bos_id, "eos_token_id": checkpoint.eos_ids}
    write_public_head(directory, head.record.spec, tensors, ids)


def _shipped_head(checkpoint: Checkpoint) -> TrainedHead:
    """The head in this program that was trained for a checkpoint."""
    wanted = _feature_fp(checkpoint)
    names = []
    for directory in sorted(path for path in _SHIPPED_HEADS.glob("*") if is_trained_head(path)):
        head = read_trained(directory)
        if head.record.feature_fp == wanted:
            return head
        names.append(directory.name)
    raise UsageError(
        f"no head for {checkpoint.name} comes with this program (there is one for {', '.join(names) or 'no model'}): "
        "train one with `starsd-edge train-draft`"
    )


def _feature_fp(checkpoint: Checkpoint) -> str:
    return feature_fingerprint(checkpoint.source_fp, "last_hidden", checkpoint.config.hidden_size)


def _read_head(directory: Path, checkpoint: Checkpoint) -> TrainedHead:
    """A head of ours, which says what it was trained for, or a published one, which does not."""
    feature_fp = _feature_fp(checkpoint)
    if not directory.is_dir():
        raise UsageError(
            f"no head at {directory}: give the directory that `starsd-edge train-draft` wrote, or {SHIPPED}"
        )
    if not is_trained_head(directory):
        return _read_published(directory, checkpoint.config, feature_fp)
    head = read_trained(directory)
    if head.record.feature_fp != feature_fp:
        raise UsageError(
            f"the head in {directory} was trained for the features of another model than {checkpoint.name}: "
            "train one for it with `starsd-edge train-draft`"
        )
    return head


def _read_published(directory: Path, config: PreTrainedConfig, feature_fp: str) -> TrainedHead:
    head = read_public_head(directory)
    if head.spec.kind != "eagle":
        raise UsageError(
            f"{directory} holds an EAGLE-3 head, and the targets of this version have no features for it: "
            "use an EAGLE-1 or EAGLE-2 head, or train one with `starsd-edge train-draft`"
        )
    given, wanted = (head.spec.hidden_size, head.spec.vocab_size), (config.hidden_size, config.vocab_size)
    if given != wanted:
        raise UsageError(
            f"the head in {directory} is for a model of width {given[0]} with {given[1]} tokens, "
            f"and this one has {wanted[0]} and {wanted[1]}"
        )
    record = HeadRecord(1, head.spec, feature_fp, {"published": directory.resolve().name, "notes": list(head.notes)})
    tensors = {name: tensor.float() for name, tensor in head.tensors.items()}
    return TrainedHead(record, tensors, torch.from_numpy(head.draft_ids))


def _fingerprint(head: TrainedHead) -> str:
    digest = hashlib.sha256()
    tensors: Mapping[str, torch.Tensor] = {**head.tensors, "draft_ids": head.draft_ids}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {list(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
