"""Heads as others publish them: EAGLE-1, EAGLE-2 and EAGLE-3.

Other loaders skip what they do not know and make up what they do not find, and a head that is half loaded still drafts,
only badly. Here every tensor of the file has a place or is named in the error, and so is every variant that is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from starsd_edge.heads.engine import HeadKind, HeadSpec
from starsd_edge.runtime.torch_features import Fusion
from starsd_export.draft_heads.public_config import (
    HeadConfig,
    StatedTaps,
    build_spec,
    find_kind,
    flatten_config,
    read_config,
    read_taps,
)
from starsd_export.draft_heads.public_tensors import (
    FUSION_BIAS,
    FUSION_NORM,
    FUSION_WEIGHT,
    PUBLIC_NAMES,
    QKV_BIASES,
    read_draft_ids,
    read_files,
    require_tensors,
)


@dataclass(frozen=True)
class PublicHead:
    """A published head.

    Attributes:
        spec: its shape.
        tensors: by our names, as stored. Where "embed.weight" or "lm_head.weight" is not there, neither does the file
            have it, and the head uses the target's.
        draft_ids: int64 [draft vocabulary], the target's id of each draft id.
        fusion: what makes its features; "eagle3" only.
        taps: the layers of the target that go into the fusion; "eagle3" only.
        notes: a line for each thing that a user who knows the head would not expect.
    """

    spec: HeadSpec
    tensors: dict[str, torch.Tensor]
    draft_ids: npt.NDArray[np.int64]
    fusion: Fusion | None
    taps: StatedTaps | None
    notes: tuple[str, ...]


def published_kind(directory: Path) -> HeadKind:
    """Which kind of head a directory holds.

    Raises:
        UsageError: none that is known.
    """
    files = read_files(directory)
    return find_kind(flatten_config(files.contents, directory), files.names, directory)


def read_public_head(directory: Path) -> PublicHead:
    """Read config.json and the weights beside it.

    Raises:
        UsageError: files that are missing, damaged, or do not say clearly what head they hold.
    """
    files = read_files(directory)
    tensors, config = files.tensors, flatten_config(files.contents, directory)
    kind = find_kind(config, tensors, directory)
    found = read_config(config, directory)
    fc_bias = _has_fc_bias(kind, found, config, tensors)
    spec = build_spec(kind, found, config, directory, fc_bias=fc_bias, qkv_bias=_has_qkv_bias(found, tensors))
    require_tensors(files, spec, found, fusion_bias=fc_bias)
    draft_ids, fusion, taps = read_draft_ids(files, spec), None, None
    if kind == "eagle3":
        bias, norm = tensors.get(FUSION_BIAS), tensors.get(FUSION_NORM)
        fusion = Fusion(tensors[FUSION_WEIGHT], bias, norm, spec.rms_norm_eps)
        taps = read_taps(files.contents, directory)
    return PublicHead(
        spec=spec,
        tensors=_our_tensors(spec, found, tensors),
        draft_ids=draft_ids,
        fusion=fusion,
        taps=taps,
        notes=_notes(spec, found, tensors),
    )


def _has_fc_bias(kind: HeadKind, found: HeadConfig, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """EAGLE-1's default is a bias and speculators' is none; an EAGLE-3 file that says nothing may have one or not."""
    stated = found.fusion_bias if found.bias is None else found.bias
    if stated is not None:
        return stated
    return FUSION_BIAS in tensors if kind == "eagle3" else "speculators_model_type" not in config


def _has_qkv_bias(found: HeadConfig, tensors: Mapping[str, Any]) -> bool:
    stated = found.attention_bias if found.qkv_bias is None else found.qkv_bias
    return any(name in tensors for name in QKV_BIASES) if stated is None else stated


def _our_tensors(spec: HeadSpec, found: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours = {name: tensors[PUBLIC_NAMES[name]] for name in spec.tensor_shapes() if PUBLIC_NAMES[name] in tensors}
    if _ties(spec, found) and "lm_head.weight" not in ours and "embed.weight" in ours:
        ours["lm_head.weight"] = ours["embed.weight"]
    return ours


def _ties(spec: HeadSpec, found: HeadConfig) -> bool:
    """An EAGLE-1 head's output matrix is the target's, whatever its configuration repeats of the target's."""
    return spec.kind == "eagle3" and found.tie_word_embeddings


def _notes(spec: HeadSpec, found: HeadConfig, tensors: Mapping[str, Any]) -> tuple[str, ...]:
    has_output = PUBLIC_NAMES["lm_head.weight"] in tensors
    if spec.kind == "eagle" and has_output:
        return ("it brings an lm_head.weight, which other programs do not read from an EAGLE-1 head",)
    if _ties(spec, found) and has_output:
        return ("its configuration ties lm_head.weight to the embedding, and yet it brings one, which is used",)
    if _ties(spec, found) and PUBLIC_NAMES["embed.weight"] not in tensors:
        return ("its output matrix is the target's embedding: right for a target whose own are tied too",)
    return ()
