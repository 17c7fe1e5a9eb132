"""A draft bundle: its files, and its graph on ONNX Runtime against the same head under torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from starsd_edge.bundles.bundle import read_manifest
from starsd_edge.cli.check import CheckOptions
from starsd_edge.cli.extras import missing_extra
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.heads.draft_bundle import DRAFT_KIND, DraftBundle, DraftManifest, load_draft_bundle
from starsd_edge.parity.files import check_each_file
from starsd_edge.parity.findings import Check, Part, any_differs, differs, not_checked, ok

_TITLE = "head on ONNX Runtime, against the same head under torch"


def check_head_bundle(path: Path, options: CheckOptions, progress: Callable[[str], None]) -> Iterator[Part]:
    """Every check that this machine can make.

    Raises:
        UsageError: an option that is for targets.
        BundleError: the manifest cannot be read.
    """
    if options.checkpoint is not None or options.engine:
        raise UsageError(f"{path} is a draft head's bundle: --checkpoint and --engine are for those of models")
    manifest = read_manifest(path, DraftManifest, DRAFT_KIND)
    return _parts(DraftBundle(path, manifest), options, progress)


def _parts(bundle: DraftBundle, options: CheckOptions, progress: Callable[[str], None]) -> Iterator[Part]:
    progress("the files")
    files = [_check_manifest(bundle), *check_each_file(bundle.path, bundle.manifest.files)]
    yield Part("files", "files", files)
    progress("the head")
    head = [not_checked("passes", "files differ, so they are not loaded")] if any_differs(files) else None
    yield Part("head", _TITLE, head or list(_compare(bundle, options.threads)))


def _check_manifest(bundle: DraftBundle) -> Check:
    spec = bundle.manifest.spec
    if spec.n_heads % spec.n_kv_heads or spec.draft_vocab_size > spec.vocab_size:
        return differs("manifest", "the sizes of the head do not go together", "make the bundle again")
    guesses = f"{spec.draft_vocab_size:,} of {spec.vocab_size:,} tokens"
    return ok("manifest", f"{spec.kind} head of width {spec.hidden_size}, {bundle.manifest.weights}, {guesses}")


def _compare(bundle: DraftBundle, threads: int | None) -> Iterator[Check]:
    from starsd_edge.heads.loading import CPU, open_head
    from starsd_edge.parity.heads import compare_heads

    for library in ("onnxruntime", "torch", "safetensors"):
        if importlib.util.find_spec(library) is None:
            yield not_checked("passes", missing_extra(library) or "")
            return
    try:
        whole = load_draft_bundle(bundle.path)
        graph = open_head(whole, threads)
        from starsd_edge.heads.torch_loading import open_torch_head

        yield from compare_heads(graph, open_torch_head(whole, CPU, "float32", threads), bundle.manifest.weights)
    except StarsdError as error:
        yield differs("head", str(error))
