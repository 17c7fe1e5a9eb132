"""A draft bundle: all that a hub needs to draft with a head, and nothing of the target but its vocabulary's rows.

manifest.json       this schema
head.onnx           the layer and the output matrix, for ONNX Runtime, weights in head.onnx.data
head.safetensors    the same tensors by our names, for torch; "lm_head.weight" only where its rows are not those of the
                    embedding
embedding.npy       float16 [V, H], the target's, or an EAGLE-3 head's own
draft_ids.npy       int32 [draft vocabulary], the target's id of each draft token
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.bundle import check_listed_files, read_manifest
from starsd_edge.errors import BundleError
from starsd_edge.heads.engine import HeadSpec

DRAFT_KIND: Literal["draft-head"] = "draft-head"
GRAPH_NAME = "head.onnx"
EMBEDDING_NAME = "embedding.npy"
DRAFT_IDS_NAME = "draft_ids.npy"
TENSORS_NAME = "head.safetensors"
HEAD_GRAPH_REVISION = 2
"""Raised whenever a graph of before no longer fits what runs it."""
_NEEDED = (GRAPH_NAME, f"{GRAPH_NAME}.data", TENSORS_NAME, EMBEDDING_NAME, DRAFT_IDS_NAME)


class DraftManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json."""

    schema_version: Literal[1]
    kind: Literal["draft-head"]
    name: str
    created_by: str
    """Versions of starsd-edge and of the libraries that made the bundle."""
    source: str
    """The head's directory and the target's checkpoint, without paths."""
    licence: str
    """Of the target, whose rows are in here."""
    spec: HeadSpec
    weights: Literal["fp32", "int8"]
    fingerprint: str
    """sha256 of the head's tensors."""
    accepts: list[str]
    """Fingerprints of the features that it continues."""
    trained: dict[str, Any]
    """How the head was trained, for people."""
    files: dict[str, str]
    """sha256 of every file of the bundle but this one."""
    graph_revision: int = 1
    """`HEAD_GRAPH_REVISION` of the exporter that made it."""
    head: str = ""
    """The head's directory, without its path."""
    target: str = ""
    """The target's model, as `export` is given it, without a path."""
    notes: list[str] = []
    """One line for each thing that a user who knows the head would not expect."""

    @property
    def target_export(self) -> str:
        """The command that makes the bundle of a target with the features that the head reads."""
        features = f" --features-for {self.head or 'HEAD'}" if self.spec.kind == "eagle3" else ""
        return f"starsd-edge export {self.target or 'MODEL'}{features}"


@dataclass(frozen=True)
class DraftBundle:
    """A draft bundle whose manifest has been read and whose files are there.

    Attributes:
        path: its directory.
    """

    path: Path
    manifest: DraftManifest


def load_draft_bundle(path: Path, *, anew: bool = False) -> DraftBundle:
    """Read a draft bundle and check that it is whole.

    Args:
        anew: read files that were read before and have not changed since, too.

    Raises:
        BundleError: missing, incomplete, altered (the file is named), another kind of bundle, or made for another
            version.
    """
    manifest = read_manifest(path, DraftManifest, DRAFT_KIND)
    if manifest.graph_revision != HEAD_GRAPH_REVISION:
        raise BundleError(
            f"{path} holds a head of graph revision {manifest.graph_revision} and this version runs "
            f"{HEAD_GRAPH_REVISION}: make the bundle again with `starsd-edge export MODEL --draft-head HEAD`"
        )
    check_listed_files(path, manifest.files, _NEEDED, anew=anew)
    return DraftBundle(path, manifest)


def draft_ids(bundle: DraftBundle) -> npt.NDArray[np.int64]:
    """int64 [draft vocabulary].

    Raises:
        BundleError: they are not ids of the target's vocabulary.
    """
    spec = bundle.manifest.spec
    ids = np.array(_load(bundle.path / DRAFT_IDS_NAME, (spec.draft_vocab_size,)), dtype=np.int64)
    if ids.min() < 0 or ids.max() >= spec.vocab_size or len(np.unique(ids)) != len(ids):
        raise BundleError(f"{bundle.path / DRAFT_IDS_NAME} does not hold ids of the vocabulary: make the bundle again")
    return ids


def embedding_rows(bundle: DraftBundle) -> npt.NDArray[np.float16]:
    """float16 [V, H], mapped and not copied.

    Raises:
        BundleError: the file does not fit the manifest.
    """
    spec = bundle.manifest.spec
    return _load(bundle.path / EMBEDDING_NAME, (spec.vocab_size, spec.hidden_size))


def _load(path: Path, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array from its file, mapped and not copied."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read ({error}): make the bundle again") from error
    if array.shape != shape:
        raise BundleError(f"{path} holds {list(array.shape)} numbers instead of {list(shape)}: make the bundle again")
    return array
