"""A bundle's graph on ONNX Runtime, against what was recorded at export and against the checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle, read_manifest
from starsd_edge.bundles.catalogue import find_entry, held_source, resolve_model
from starsd_edge.cli.progress import fetch_progress
from starsd_edge.doctor.gather import available_memory
from starsd_edge.errors import EngineError, StarsdError, missing_extra
from starsd_edge.heads.draft_bundle import DRAFT_KIND, DraftBundle, DraftManifest, load_draft_bundle
from starsd_edge.parity.compare import check_bits, check_text, compare_passes, from_checkpoint, own_bound, recorded
from starsd_edge.parity.files import check_each_file
from starsd_edge.parity.findings import Check, Part, any_differs, differs, not_checked, ok
from starsd_edge.parity.golden import Golden
from starsd_edge.parity.passes import Observation, random_ids, run_passes
from starsd_edge.runtime.engine import Engine
from starsd_edge.runtime.loading import open_graph

GRAPH = "graph"
_AGAIN = "export the bundle again with `starsd-edge export`"
_RECORDED = "graph on ONNX Runtime, against what was recorded at export"


@dataclass(frozen=True)
class GraphRun:
    """A graph that has run, or why it has not.

    Attributes:
        golden: what was recorded of it at export, if anything was.
        ids: tokens of the passes.
        passes: what it gave.
        why_not: instead of `engine` and `passes`.
    """

    golden: Golden | None
    ids: Sequence[int]
    engine: Engine | None = None
    passes: Sequence[Observation] = ()
    why_not: Check | None = None


def run_graph(bundle: Bundle, whole: Collection[str], golden: Golden | None, threads: int | None) -> GraphRun:
    """Run every pass.

    Args:
        whole: files that are what was exported; no other is loaded.
    """
    ids = golden.facts.ids if golden else random_ids(bundle.manifest.model.vocab_size)
    why_not = _why_not(bundle, whole)
    if why_not is not None:
        return GraphRun(golden, ids, why_not=why_not)
    file = bundle.path / bundle.manifest.graph.file
    try:
        engine = open_graph(file, bundle.manifest, threads, allow_inexact=True)
        return GraphRun(golden, ids, engine, list(run_passes(engine, ids)))
    except EngineError as error:
        return GraphRun(golden, ids, why_not=differs(GRAPH, str(error)))


def check_against_recording(bundle: Bundle, run: GraphRun) -> Part:
    """What the graph gives here against what it gave where it was exported, and whether speculation is exact."""
    checks = [run.why_not] if run.why_not else [*_compare_recorded(bundle, run), *_bits(bundle, run)]
    return Part("recorded", _RECORDED, checks)


def check_against_checkpoint(bundle: Bundle, run: GraphRun, named: str | None) -> Part:
    """What the graph gives against what the model says with the weights that it came with.

    Args:
        named: the checkpoint as the user gave it.

    Raises:
        StarsdError: the checkpoint that was named cannot be used.
    """
    title = f"graph on ONNX Runtime, against the checkpoint {bundle.manifest.source}"
    return Part("checkpoint", title, _compare_checkpoint(bundle, run, named))


def _why_not(bundle: Bundle, whole: Collection[str]) -> Check | None:
    graph = bundle.manifest.graph
    for name in (graph.file, graph.weights_file):
        if name not in bundle.manifest.files:
            return differs(GRAPH, f"the manifest names {name} without its hash", _AGAIN)
        if name not in whole:
            return not_checked(GRAPH, f"{name} is not the file that was exported, so it is not loaded")
    if importlib.util.find_spec("onnxruntime") is None:
        return not_checked(GRAPH, missing_extra("onnxruntime") or "")
    needed = sum((bundle.path / name).stat().st_size for name in (graph.file, graph.weights_file))
    if needed > available_memory():
        return not_checked(GRAPH, f"its {needed / 1e9:.1f} GB do not fit into the free memory", "close other programs")
    return None


def _compare_recorded(bundle: Bundle, run: GraphRun) -> list[Check]:
    if run.golden is None or run.engine is None:
        return [
            not_checked(
                "passes",
                "the bundle holds no recording (an earlier version made it, or it is damaged)",
                f"{_AGAIN}, or name the checkpoint on a machine with the extra `export`",
            )
        ]
    bound = own_bound(bundle.manifest.graph)
    passes = compare_passes(run.passes, recorded(run.golden, bound, _AGAIN))
    return [*passes, check_text(run.engine, run.golden.facts.text, bundle.manifest.model.chosen_ids, bound, _AGAIN)]


def _bits(bundle: Bundle, run: GraphRun) -> list[Check]:
    """Of graphs that targets run on ONNX Runtime: what its bits are here says nothing of a GPU's."""
    is_run_here = bundle.manifest.graph.tensorrt is None and run.engine is not None
    return [check_bits(run.engine, run.ids)] if is_run_here and run.engine is not None else []


def _fetched(model: str) -> Path:
    with fetch_progress(find_entry(model)) as progress:
        return resolve_model(model, progress)


def _compare_checkpoint(bundle: Bundle, run: GraphRun, named: str | None) -> list[Check]:
    if run.why_not is not None:
        return [not_checked("passes", "the graph did not run")]
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            return [not_checked("passes", missing_extra(library) or "")]
    path = _fetched(named) if named else held_source(bundle.manifest.source)
    if path is None:
        return [not_checked("passes", "it is not in the cache", "name it: --checkpoint MODEL")]
    from starsd_export.source_check import check_weights, keeps_numbers, open_source

    graph = bundle.manifest.graph
    try:
        source = open_source(path, bundle.manifest)
    except StarsdError as error:
        if named:
            raise
        return [not_checked("passes", str(error))]
    checks = compare_passes(run.passes, from_checkpoint(source.stock, graph, run.golden, _AGAIN))
    if keeps_numbers(graph):
        checks.append(check_weights(source.model, bundle.path / graph.file, graph.weights, _AGAIN))
    return checks


_TITLE = "head on ONNX Runtime, against the same head under torch"


def check_head_bundle(path: Path, threads: int | None, progress: Callable[[str], None]) -> Iterator[Part]:
    """Every check that this machine can make.

    Raises:
        BundleError: the manifest cannot be read.
    """
    manifest = read_manifest(path, DraftManifest, DRAFT_KIND)
    return _head_parts(DraftBundle(path, manifest), threads, progress)


def _head_parts(bundle: DraftBundle, threads: int | None, progress: Callable[[str], None]) -> Iterator[Part]:
    progress("the files")
    files = [_check_manifest(bundle), *check_each_file(bundle.path, bundle.manifest.files)]
    yield Part("files", "files", files)
    progress("the head")
    head = [not_checked("passes", "files differ, so they are not loaded")] if any_differs(files) else None
    yield Part("head", _TITLE, head or list(_compare(bundle, threads)))


def _check_manifest(bundle: DraftBundle) -> Check:
    spec = bundle.manifest.spec
    if spec.n_heads % spec.n_kv_heads or spec.draft_vocab_size > spec.vocab_size:
        return differs("manifest", "the sizes of the head do not go together", "make the bundle again")
    vocabulary = f"{spec.draft_vocab_size:,} of {spec.vocab_size:,} tokens"
    return ok("manifest", f"{spec.kind} head of width {spec.hidden_size}, {bundle.manifest.weights}, {vocabulary}")


def _compare(bundle: DraftBundle, threads: int | None) -> Iterator[Check]:
    from starsd_edge.heads.loading import CPU, open_head
    from starsd_edge.parity.compare import compare_heads

    for library in ("onnxruntime", "torch", "safetensors"):
        if importlib.util.find_spec(library) is None:
            yield not_checked("passes", missing_extra(library) or "")
            return
    try:
        whole = load_draft_bundle(bundle.path)
        graph = open_head(whole, threads)
        from starsd_edge.heads.torch_engine import open_torch_head

        yield from compare_heads(graph, open_torch_head(whole, CPU, "float32", threads), bundle.manifest.weights)
    except StarsdError as error:
        yield differs("head", str(error))
