"""What can be checked of a bundle without running it: its manifest, its files, its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from starsd_edge.bundles.bundle import TOKENIZER_NAME, Bundle, check_listed_files
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    EngineHost,
    EngineManifest,
    graph_digest,
    is_engine_of,
    read_engine_manifest,
    rebuild_command,
    require_fit,
    require_plan,
)
from starsd_edge.bundles.fingerprints import tokenizer_fingerprint
from starsd_edge.bundles.manifest import GRAPH_REVISION, Manifest
from starsd_edge.errors import BundleError, EngineError, StarsdError
from starsd_edge.parity.findings import Check, differs, ok
from starsd_edge.parity.golden import Golden
from starsd_edge.text.tokenizer import Tokenizer

_AGAIN = "export the bundle again, or copy it again from where it was made"


def check_manifest(path: Path, manifest: Manifest) -> Check:
    """Whether its numbers go together, as those of an exporter's do."""
    wrong = next(_contradictions(manifest), None)
    if wrong is not None:
        return differs("manifest", f"{path / MANIFEST_NAME}: {wrong}", "export the bundle again")
    graph, model = manifest.graph, manifest.model
    return ok(
        "manifest",
        f"{model.architecture}, {model.n_layers} layers, {graph.weights} weights, {graph.kv_strategy} {graph.kv_dtype} "
        "KV",
    )


def check_each_file(path: Path, files: Mapping[str, str]) -> list[Check]:
    """A line for each file that is not what was exported, or one for all of them.

    Args:
        files: sha256 by name.
    """
    checks = []
    for name, digest in files.items():
        try:
            check_listed_files(path, {name: digest}, (), anew=True)
        except BundleError as error:
            checks.append(differs(name, str(error)))
        except OSError as error:
            checks.append(differs(name, f"{path / name} cannot be read: {error.strerror}", _AGAIN))
    if checks:
        return checks
    size = sum((path / name).stat().st_size for name in files)
    return [ok("files", f"{len(files)} files are what was exported, {size / 1e6:,.0f} MB")]


def check_tokenizer(path: Path, manifest: Manifest, golden: Golden | None) -> Check:
    """Whether it is the tokenizer of the manifest, and makes of texts what it made of them at export."""
    name, file = "tokenizer", path / TOKENIZER_NAME
    try:
        found = tokenizer_fingerprint(json.loads(file.read_text(encoding="utf-8")))
        if found != manifest.fingerprints.tokenizer_fp:
            return differs(
                name, f"{file} is another tokenizer than the one of the model (its fingerprint differs)", _AGAIN
            )
        tokenizer = Tokenizer.load(path, manifest.text)
    except StarsdError as error:
        return differs(name, str(error))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return differs(name, f"{file} is not a usable tokenizer ({type(error).__name__}: {error})", _AGAIN)
    prompts = () if golden is None else tuple(zip(golden.facts.prompts, golden.facts.prompt_ids, strict=True))
    for text, ids in prompts:
        if tokenizer.encode(text) != ids:
            return differs(name, f"{file} makes other tokens of {text[:24]!r} than at export", _AGAIN)
    said = f", {len(prompts)} texts give the tokens of the export" if prompts else ""
    turn = tokenizer.end_of_turn()
    if turn is not None and tokenizer.id_of(turn) not in tokenizer.eos_ids:
        said += f"; its chat template ends turns with {turn}, which ends no answer (export --also-end {turn!r})"
    elif not tokenizer.eos_ids:
        said += "; no token ends an answer (export --also-end TOKEN)"
    return ok(name, f"{manifest.model.tokenizer_size:,} ids{said}")


def _contradictions(manifest: Manifest) -> Iterator[str]:
    model, graph = manifest.model, manifest.graph
    if model.tokenizer_size > model.vocab_size:
        yield f"a tokenizer of {model.tokenizer_size} ids is beyond the vocabulary of {model.vocab_size}"
    if model.n_heads % model.n_kv_heads:
        yield f"{model.n_heads} heads do not share {model.n_kv_heads} KV heads evenly"
    if graph.feature_kind == "last_hidden" and graph.feature_width != model.hidden_size:
        yield f"features of {graph.feature_width} numbers are not the hidden state of {model.hidden_size}"
    if len(graph.tap_layers) != len(set(graph.tap_layers)) or any(
        not 0 <= layer <= model.n_layers for layer in graph.tap_layers
    ):
        yield f"layers {graph.tap_layers} cannot be tapped of {model.n_layers}"
    if graph.tensorrt is None and graph.kv_strategy == "inplace":
        yield "an inplace graph needs caches of a fixed size, and none is named"
    if graph.kv_strategy == "inplace" and graph.tensorrt is not None:
        needed = model.max_context + graph.max_tree
        if graph.tensorrt.capacity < needed:
            yield f"caches of {graph.tensorrt.capacity} rows do not hold {model.max_context} tokens and a tree"
    if graph.revision > GRAPH_REVISION:
        yield f"graph revision {graph.revision} is newer than this program's ({GRAPH_REVISION})"
    ids: Sequence[int | None] = [manifest.text.bos_id, *manifest.text.eos_ids]
    for token in ids:
        if token is not None and not 0 <= token < model.vocab_size:
            yield f"token {token} is beyond the vocabulary of {model.vocab_size}"


Agreement = Callable[[Path, EngineManifest, Manifest], None]
"""Raises EngineError where an engine's manifest is not one of an engine of this graph."""


def find_engines(bundle: Bundle, kept: Path | None) -> list[Path]:
    """Directories of engines of a bundle: inside it, and among those that are kept on this machine.

    Args:
        kept: where `export` puts engines; None where there is no such place.
    """
    inside = [file.parent for file in sorted(bundle.path.rglob(ENGINE_NAME))]
    files = [] if kept is None else sorted(kept.glob(f"*/{ENGINE_NAME}"))
    return [*inside, *(file.parent for file in files if _is_of(file.parent, bundle))]


def check_engine(directory: Path, engine: EngineManifest, manifest: Manifest, agree: Agreement) -> list[Check]:
    """All of an engine that can be checked on any machine."""
    limits = engine.limits
    sizes = f"{limits.max_context} tokens, trees of {limits.max_tree}"
    about = f"{_library(engine)} for {engine.compute_capability}, {sizes}"
    built_from = _check_graph(directory, engine, manifest, agree)
    return [ok("manifest", about), built_from, _check_plan(directory, engine)]


def check_fit(directory: Path, engine: EngineManifest, host: EngineHost, manifest: Manifest) -> Check:
    """Whether it runs on a machine."""
    try:
        require_fit(directory, engine, host, manifest)
    except EngineError as error:
        return differs("machine", str(error))
    return ok("machine", f"{_library(engine)} on {host.compute_capability}, as it was built for")


def _check_graph(directory: Path, engine: EngineManifest, manifest: Manifest, agree: Agreement) -> Check:
    if engine.graph_digest != graph_digest(manifest):
        again = f"build it again with `{rebuild_command(engine)}`"
        return differs("graph", f"the engine at {directory} was built from another graph", again)
    try:
        agree(directory, engine, manifest)
    except EngineError as error:
        return differs("graph", str(error))
    return ok("graph", f"it was built from this graph, whose {len(engine.tensors)} tensors it has")


def _check_plan(directory: Path, engine: EngineManifest) -> Check:
    try:
        plan = require_plan(directory, engine, anew=True)
    except EngineError as error:
        return differs("plan", str(error))
    return ok("plan", f"{plan.name} is what was built, {engine.plan_bytes / 1e6:,.0f} MB")


def _is_of(directory: Path, bundle: Bundle) -> bool:
    manifest = bundle.manifest
    try:
        engine = read_engine_manifest(directory)
    except EngineError:  # a damaged one is shown by its name
        pattern = rf"{re.escape(manifest.name)}-tensorrt(-rtx)?-sm\d+-[0-9a-f]+"
        return re.fullmatch(pattern, directory.name) is not None
    return is_engine_of(engine, manifest)


def _library(engine: EngineManifest) -> str:
    return f"{'TensorRT-RTX' if engine.library == 'tensorrt_rtx' else 'TensorRT'} {engine.version}"
