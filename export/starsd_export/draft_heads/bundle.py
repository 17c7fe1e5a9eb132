"""From a head and its target's checkpoint to a draft bundle, with the ONNX graph that `OnnxHeadEngine` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from safetensors.torch import save
from transformers import PreTrainedModel

from starsd_edge.bundles.bundle import write_manifest
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.integrity import hash_files, require_replaceable, staged_directory
from starsd_edge.errors import require_one_of
from starsd_edge.heads.draft_bundle import (
    DRAFT_IDS_NAME,
    DRAFT_KIND,
    EMBEDDING_NAME,
    GRAPH_NAME,
    HEAD_GRAPH_REVISION,
    TENSORS_NAME,
    DraftBundle,
    DraftManifest,
    load_draft_bundle,
)
from starsd_edge.heads.engine import INPUTS, MOST_CANDIDATES, OUTPUTS
from starsd_edge.heads.torch_engine import log_probabilities, run_head
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.checkpoint import Checkpoint, digest_tensors, open_checkpoint
from starsd_export.draft_heads.fitting import FittingHead, find_head
from starsd_export.draft_heads.public_tensors import write_public_head
from starsd_export.draft_heads.trained import TrainedHead
from starsd_export.graph import simplify, to_onnx
from starsd_export.pipeline import WEIGHTS, versions
from starsd_export.quantised_graph import quantise_by_row

DRAFT_STEPS = ("reading the head", "loading the target's weights", "tracing the head", "writing")


def export_draft_bundle(
    source: Path,
    head: str,
    destination: Path,
    weights: str = "int8",
    progress: Callable[[str], None] = lambda step: None,
    model_name: str | None = None,
) -> DraftBundle:
    """Make a draft bundle.

    Args:
        source: the target's checkpoint.
        head: directory of a head that `train-draft` wrote, or of a published one; or `fitting.SHIPPED`.
        weights: "int8" (see `quantise_by_row`) or "fp32".
        model_name: what `export` calls the target's model, without a path; None takes the checkpoint's name.

    Raises:
        UsageError: the head is for another target, or a file cannot be used.
    """
    require_one_of("kind of bundle", "--weights", weights, WEIGHTS)
    destination = destination.resolve()
    require_replaceable(destination, MANIFEST_NAME, "bundle")
    progress(DRAFT_STEPS[0])
    checkpoint = open_checkpoint(source)
    found = find_head(head, checkpoint)
    progress(DRAFT_STEPS[1])
    tensors = _whole(found.head, checkpoint.load())
    progress(DRAFT_STEPS[2])
    graph = trace_head(TorchHead(found.head.record.spec, tensors), int8=weights == "int8")
    progress(DRAFT_STEPS[3])
    with staged_directory(destination) as staging:
        onnx_ir.save(graph, staging / GRAPH_NAME, external_data=f"{GRAPH_NAME}.data")
        (staging / TENSORS_NAME).write_bytes(save(_for_torch(found.head, tensors)))
        np.save(staging / EMBEDDING_NAME, tensors["embed.weight"].to(torch.float16).numpy(), allow_pickle=False)
        np.save(staging / DRAFT_IDS_NAME, found.head.draft_ids.to(torch.int32).numpy(), allow_pickle=False)
        write_manifest(staging, _describe(staging, destination.name, found, checkpoint, weights, model_name))
    return load_draft_bundle(destination)


def write_public(checkpoint: Checkpoint, head: TrainedHead, directory: Path) -> None:
    """Write a head of ours in the public EAGLE layout, the target's embedding with it, in float16."""
    embedding = checkpoint.load().get_input_embeddings().weight.detach()
    tensors = {name: tensor.to(torch.float16) for name, tensor in {**head.tensors, "embed.weight": embedding}.items()}
    ids = {"bos_token_id": checkpoint.text.bos_id, "eos_token_id": checkpoint.text.eos_ids}
    write_public_head(directory, head.record.spec, tensors, ids)


def _whole(head: TrainedHead, model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    """The head with the target's embedding and output matrix where it has none of its own."""
    tensors = dict(head.tensors)
    if "embed.weight" not in tensors:
        tensors["embed.weight"] = model.get_input_embeddings().weight.detach()
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = model.get_output_embeddings().weight.detach()[head.draft_ids]
    return tensors


def _describe(
    staging: Path, name: str, found: FittingHead, checkpoint: Checkpoint, weights: str, model_name: str | None
) -> DraftManifest:
    record, model_name = found.head.record, model_name or checkpoint.name
    return DraftManifest(
        schema_version=1,
        kind=DRAFT_KIND,
        name=name,
        created_by=versions(),
        source=f"{found.name} for {model_name}",
        licence=checkpoint.licence,
        spec=record.spec,
        weights="int8" if weights == "int8" else "fp32",
        fingerprint=digest_tensors({**found.head.tensors, "draft_ids": found.head.draft_ids}),
        accepts=[record.feature_fp],
        trained=record.trained,
        files=hash_files(staging),
        head=found.name,
        target=model_name,
        notes=list(found.notes),
        graph_revision=HEAD_GRAPH_REVISION,
    )


def _for_torch(head: TrainedHead, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What head.safetensors holds: all but what embedding.npy does, and nothing wider than its numbers are."""
    left_out = {"embed.weight"}
    if torch.equal(whole["lm_head.weight"].half(), whole["embed.weight"][head.draft_ids].half()):
        left_out.add("lm_head.weight")
    names = [name for name in head.record.spec.tensor_shapes() if name not in left_out]
    return {name: _narrowest(whole[name]).contiguous() for name in names}


def _narrowest(tensor: torch.Tensor) -> torch.Tensor:
    """As float16 or bfloat16 where that loses nothing."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = tensor.to(dtype)
        if torch.equal(narrow.to(tensor.dtype), tensor):
            return narrow
    return tensor


# Every dynamic dimension is traced at 2 or more: 0 and 1 would be baked in.
_LINES, _PLACES, _PAST, _DRAFTED, _WANTED = 2, 5, 6, 3, 4


class _HeadGraph(torch.nn.Module):  # type: ignore[misc]
    """`run_head` and the candidates as a module, for the tracer."""

    def __init__(self, head: TorchHead, candidates: int) -> None:
        super().__init__()
        self.head = head
        self.count = min(candidates, head.spec.draft_vocab_size)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """In the order of `INPUTS`, and out in that of `OUTPUTS`."""
        predicted, keys, values, logits = run_head(self.head, *inputs)
        # ONNX says of TopK that it takes the lowest among equals.
        tokens = torch.topk(logits, self.count).indices
        return predicted, keys, values, tokens, log_probabilities(logits, tokens)


def trace_head(head: TorchHead, *, int8: bool, candidates: int = MOST_CANDIDATES) -> onnx_ir.Model:
    """The graph of a float32 head.

    Args:
        int8: store the matrices as 8-bit integers; see `quantise_by_row`.
        candidates: given below each row.
    """
    spec = head.spec
    rows = _LINES * _PLACES - 1
    past = torch.zeros(_LINES, spec.n_kv_heads, _PAST, spec.head_dim)
    late = torch.zeros(_LINES, spec.n_kv_heads, _DRAFTED, spec.head_dim)
    arguments = (
        torch.zeros(rows, spec.hidden_size),
        torch.zeros(rows, spec.hidden_size),
        torch.arange(rows),
        torch.arange(_LINES * _PLACES).clamp(max=rows - 1).view(_LINES, _PLACES),
        torch.arange(rows),
        past,
        past.clone(),
        torch.full((_LINES,), _PAST),
        late,
        late.clone(),
        torch.ones(_LINES, _PLACES, _DRAFTED + _PLACES, dtype=torch.bool),
        torch.arange(_WANTED),
    )
    free = torch.export.Dim.DYNAMIC
    row, cache = {0: free}, {0: free, 2: free}
    by_place, sight = {0: free, 1: free}, {0: free, 1: free, 2: free}
    shapes = (row, row, row, by_place, row, cache, cache, row, cache, cache, sight, row)
    model = simplify(to_onnx(_HeadGraph(head, candidates), arguments, (shapes,), INPUTS, OUTPUTS))
    if int8:
        quantise_by_row(model)
    return model
