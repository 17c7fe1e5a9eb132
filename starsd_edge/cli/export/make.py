"""What `export` makes: a bundle of a model, a draft bundle of a head, an engine of a bundle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starsd_edge.cli.export.options import ExportCommandOptions
from starsd_edge.cli.progress import fetch_progress, steps
from starsd_edge.errors import UsageError, require_one_of

if TYPE_CHECKING:
    from starsd_edge.bundles.bundle import Bundle
    from starsd_edge.heads.draft_bundle import DraftBundle
    from starsd_export.engines.engine_export import BuiltEngine
    from starsd_export.engines.worker import Progress
    from starsd_export.pipeline import ExportOptions
    from starsd_export.tensorrt_graph import TensorrtOptions

_FOR_TENSORRT = ("block", "head_weights", "embedding_weights", "keep_int8", "calibration", "kv_strategy")
_OF_A_GRAPH = ("weights", *_FOR_TENSORRT, "kv", "features_for", "chat_template", "also_end")
"""Options that decide what a graph is like; a bundle has its graph already."""
_WEIGHTS = "fp32"
"""Of a model's bundle for ONNX Runtime where none are named."""
_NOTE_RTX = (
    "note: TensorRT-RTX engines are for RTX GPUs of this compute capability; a Jetson builds its own, on the device, "
    "with --engine tensorrt"
)


Say = Callable[[str], None]
"""Takes a line about what was made."""


def make_bundle(options: ExportCommandOptions, say: Say = typer.echo) -> None:
    """Make a bundle of a model, or of a head, and say where it is.

    Raises:
        UsageError: options that do not go together.
    """
    _quiet_loader()
    if options.compute_capability:
        raise UsageError("--compute-capability is for --engine")
    if options.context is not None and options.kv_strategy != "inplace":
        raise UsageError("--context is for --engine and --kv-strategy inplace")
    weights = options.weights or _default_weights(options)
    kind = _bundle_kind(options, weights)
    source = _fetch(options.model)
    if options.draft_head is not None:
        _export_head(options, source, options.draft_head, weights, say)
    else:
        _export_model(options, source, kind, say)


def make_engine(options: ExportCommandOptions, say: Say = typer.echo) -> Path:
    """Build an engine from a bundle, or from a model by way of its bundle, and say where it is.

    Returns:
        The directory of the bundle.

    Raises:
        UsageError: options that do not go together.
    """
    _quiet_loader()
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.catalogue import bundle_at
    from starsd_export.engines.engine_export import EngineOptions, export_engine

    if options.draft_head is not None:
        raise UsageError("draft heads run on ONNX Runtime: leave --engine away")
    kind = EngineOptions(options.engine or "", options.compute_capability, options.context)
    place = bundle_at(options.model)
    if place is not None and (given := _given(options, _OF_A_GRAPH)):
        raise UsageError(f"{options.model} is a bundle, whose graph is what it is: leave {' and '.join(given)} away")
    bundle = load_bundle(place or _export_graph(options, say))
    with _build_shown() as progress:
        built = export_engine(bundle, kind, options.output, progress)
    _print_engine(built, say)
    return bundle.path


def place_in_cache(model: str, weights: str | None) -> Path:
    """Where `make_bundle` puts a model's bundle for ONNX Runtime that differs by its weights alone."""
    from starsd_edge.bundles.cache import bundles_dir

    return bundles_dir() / f"{_short_name(model)}-{weights or _WEIGHTS}"


def _quiet_loader() -> None:
    """The loader's own bars, between our steps, are left out; it looks at this when it is imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")


def _given(options: ExportCommandOptions, names: Sequence[str]) -> list[str]:
    """Those of these options that are not as by default, as they are written."""
    given = [name for name in names if getattr(options, name) != getattr(ExportCommandOptions, name)]
    return [f"--{name.replace('_', '-')}" for name in given]


def _export_graph(options: ExportCommandOptions, say: Say) -> Path:
    """The bundle that an engine is built from: the one in the cache, if its name alone says what it is of, or new."""
    from starsd_edge.bundles.bundle import why_make
    from starsd_edge.bundles.catalogue import find_entry

    options = replace(options, runtime="tensorrt", output=None)
    weights = options.weights or _default_weights(options)
    kind = _bundle_kind(options, weights)
    place = _destination(options, _bundle_name(options, kind))
    plain = options.features_for is None and options.chat_template is None and not options.also_end
    named = plain and find_entry(options.model) is not None
    if not named or why_make(place):
        _export_model(options, _fetch(options.model), kind, say)
    return place


def _fetch(model: str) -> Path:
    from starsd_edge.bundles.catalogue import find_entry, resolve_model

    with fetch_progress(find_entry(model)) as fetched:
        return resolve_model(model, fetched)


def _export_model(options: ExportCommandOptions, source: Path, kind: ExportOptions, say: Say) -> None:
    from starsd_edge.bundles.hugging_face import parse_hub_name
    from starsd_export.pipeline import export_bundle

    hub_name = parse_hub_name(options.model)
    name = _bundle_name(options, kind)
    label = f"{hub_name.repository}@{source.name}" if hub_name else None  # its directory is named by the commit
    started = time.monotonic()
    with steps("export", spinner=True) as progress:
        bundle = export_bundle(source, _destination(options, name), replace(kind, name=name, source=label), progress)
    worst = max(bundle.manifest.parity.values())
    _print_bundle(bundle, started, say)
    bitwise = "" if kind.tensorrt else ", chains bit for bit"
    say(f"parity with transformers: within {worst:.1e}{bitwise}")
    for text, change in bundle.manifest.perplexity.items():
        say(f"perplexity on {text} {change}")
    _print_notes(bundle.manifest.notes)


def _export_head(options: ExportCommandOptions, source: Path, head: str, weights: str, say: Say) -> None:
    from starsd_export.draft_heads.bundle import export_draft_bundle
    from starsd_export.draft_heads.fitting import head_kind

    destination = _destination(options, f"{_short_name(options.model)}-{head_kind(head)}-{weights}")
    started = time.monotonic()
    with steps("export", spinner=True) as progress:
        bundle = export_draft_bundle(source, head, destination, weights, progress, _public_name(options.model))
    _print_bundle(bundle, started, say)
    notes = [*bundle.manifest.notes]
    if bundle.manifest.spec.kind == "eagle3":
        notes.append(f"its targets run the bundle of `{bundle.manifest.target_export}`")
    _print_notes(notes)


def _print_bundle(bundle: Bundle | DraftBundle, started: float, say: Say) -> None:
    size = sum(file.stat().st_size for file in bundle.path.iterdir()) / 1e6
    say(str(bundle.path))
    say(f"{size:,.0f} MB in {time.monotonic() - started:.0f} s, licence {bundle.manifest.licence}")


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _default_weights(options: ExportCommandOptions) -> str:
    if options.draft_head is not None:
        return "int8"
    return "fp16" if options.runtime == "tensorrt" else _WEIGHTS


def _bundle_kind(options: ExportCommandOptions, weights: str) -> ExportOptions:
    from starsd_export.pipeline import ExportOptions

    return ExportOptions(
        weights=weights,
        kv_dtype=options.kv,
        tensorrt=_tensorrt(options, weights),
        features_for=options.features_for,
        chat_template=options.chat_template,
        also_end=options.also_end,
    )


def _tensorrt(options: ExportCommandOptions, weights: str) -> TensorrtOptions | None:
    from starsd_export.tensorrt_graph import TensorrtOptions

    require_one_of("kind of bundle", "--runtime", options.runtime, ("onnxruntime", "tensorrt"))
    if options.runtime == "tensorrt":
        if options.draft_head is not None:
            raise UsageError("draft heads run on ONNX Runtime: leave --runtime tensorrt away")
        usual = TensorrtOptions.usual(weights)
        return TensorrtOptions(
            options.block,
            options.head_weights or usual.head,
            options.kv_strategy,
            options.context,
            options.embedding_weights or usual.embedding,
            usual.wide if options.keep_int8 is None else _parts(options.keep_int8),
            options.calibration or usual.calibration,
        )
    if given := _given(options, _FOR_TENSORRT):
        raise UsageError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for --runtime tensorrt")
    return None


def _parts(listed: str) -> tuple[str, ...]:
    return () if listed == "none" else tuple(part.strip() for part in listed.split(","))


def _bundle_name(options: ExportCommandOptions, kind: ExportOptions) -> str:
    return f"{_short_name(options.model)}-{_kind_name(kind)}"


def _kind_name(kind: ExportOptions) -> str:
    """The end of a bundle's name."""
    if kind.tensorrt is not None:
        usual = type(kind.tensorrt).usual(kind.weights)
        parts = ["tensorrt", kind.weights]
        if kind.tensorrt.head != usual.head:
            parts.append(f"head-{kind.tensorrt.head}")
        if kind.tensorrt.embedding != usual.embedding:
            parts.append(f"embedding-{kind.tensorrt.embedding}")
        if set(kind.tensorrt.wide) != set(usual.wide):
            parts.append(f"int8-{'-'.join(kind.tensorrt.wide) or 'none'}")
        if kind.tensorrt.calibration != usual.calibration:
            parts.append(f"calibration-{kind.tensorrt.calibration}")
        if kind.tensorrt.block != ExportCommandOptions.block:
            parts.append(f"block-{kind.tensorrt.block}")
        if kind.tensorrt.kv_strategy == "inplace":
            parts.append("inplace" if kind.tensorrt.context is None else f"inplace-{kind.tensorrt.context}")
    else:
        parts = [kind.weights, *(["kv32"] if kind.kv_dtype != "float16" else [])]
    return "-".join([*parts, *(["eagle3"] if kind.features_for else [])])


def _destination(options: ExportCommandOptions, name: str) -> Path:
    from starsd_edge.bundles.cache import bundles_dir

    return options.output or bundles_dir() / name


def _short_name(model: str) -> str:
    from starsd_edge.bundles.hugging_face import parse_hub_name

    hub_name = parse_hub_name(model)
    return hub_name.short if hub_name else _stem(model)


def _public_name(model: str) -> str:
    """What names the model without saying where it lies on this machine."""
    from starsd_edge.bundles.hugging_face import parse_hub_name

    hub_name = parse_hub_name(model)
    return f"hf:{hub_name.repository}" if hub_name else Path(model).resolve().name


def _stem(model: str) -> str:
    path = Path(model)
    if path.name in ("", ".."):  # the current directory or one above it, which have names all the same
        path = path.resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def _print_engine(built: BuiltEngine, say: Say) -> None:
    engine, limits = built.manifest, built.manifest.limits
    say(str(built.path))
    made = (
        "built before"
        if built.was_there
        else f"built in {engine.build_seconds:.0f} s with {engine.build_memory_bytes / 1e9:.2f} GB of memory"
    )
    kinds = ", ".join(engine.compute_capabilities)
    say(f"{engine.plan_bytes / 1e6:,.0f} MB for {kinds}, {engine.library} {engine.version}, {made}")
    say(f"up to {limits.max_context} tokens, prefill in chunks of {limits.max_chunk}, trees of {limits.max_tree} rows")
    if engine.library == "tensorrt_rtx":
        typer.echo(_NOTE_RTX, err=True)


@contextmanager
def _build_shown() -> Iterator[Callable[[Progress], None]]:
    """Show how far the build is: a spinner on a terminal, a line for each phase elsewhere (standard error)."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda report: None if report.done else typer.echo(f"engine: {report.phase}", err=True)
        return
    with console.status("building the engine") as status:
        yield lambda report: status.update(f"{report.phase} ({report.done} of {report.of})")
