"""`starsd-edge export`: a checkpoint becomes a bundle that targets and hubs run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.export.options import ExportCommandOptions
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_export.pipeline import ExportOptions
    from starsd_export.tensorrt_graph import TensorrtOptions


_FOR_TENSORRT = ("block", "head_weights", "embedding_weights", "keep_int8", "calibration", "kv_strategy")


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "export", export, ExportCommandOptions)


def export(options: ExportCommandOptions) -> None:
    """Export a model to a bundle: graph, weights, tokenizer and a manifest with a hash of every file.

    The graph is compared with the model it was made from before the bundle is put in place. With --draft-head it is a
    head's bundle, for `run-draft`. With --engine the graph becomes an engine, too.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # the loader's own bars, between our steps
    if options.engine is not None:
        from starsd_edge.cli.export.engine import build_engine

        build_engine(options, _export_graph)
        return
    if options.compute_capability:
        raise UsageError("--compute-capability is for --engine")
    if options.context is not None and options.kv_strategy != "inplace":
        raise UsageError("--context is for --engine and --kv-strategy inplace")
    weights = options.weights or _default_weights(options)
    kind = _bundle_kind(options, weights)
    source = _fetch(options.model)
    if options.draft_head is not None:
        _export_head(options, source, options.draft_head, weights)
    else:
        _export_model(options, source, kind)


def _export_graph(options: ExportCommandOptions) -> Path:
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
        _export_model(options, _fetch(options.model), kind)
    return place


def _fetch(model: str) -> Path:
    from starsd_edge.bundles.catalogue import find_entry, resolve_model
    from starsd_edge.cli.progress import fetch_progress

    with fetch_progress(find_entry(model)) as fetched:
        return resolve_model(model, fetched)


def _bundle_name(options: ExportCommandOptions, kind: ExportOptions) -> str:
    return f"{_short_name(options.model)}-{_kind_name(kind)}"


def _export_model(options: ExportCommandOptions, source: Path, kind: ExportOptions) -> None:
    from starsd_edge.bundles.hugging_face import parse_hub_name
    from starsd_export.pipeline import export_bundle

    hub_name = parse_hub_name(options.model)
    name = _bundle_name(options, kind)
    label = f"{hub_name.repository}@{source.name}" if hub_name else None  # its directory is named by the commit
    started = time.monotonic()
    with _steps() as progress:
        bundle = export_bundle(source, _destination(options, name), replace(kind, name=name, source=label), progress)
    worst = max(bundle.manifest.parity.values())
    typer.echo(bundle.path)
    typer.echo(f"{_size(bundle.path)} in {time.monotonic() - started:.0f} s, licence {bundle.manifest.licence}")
    bitwise = "" if kind.tensorrt else ", chains bit for bit"
    typer.echo(f"parity with transformers: within {worst:.1e}{bitwise}")
    for text, change in bundle.manifest.perplexity.items():
        typer.echo(f"perplexity on {text} {change}")
    for note in bundle.manifest.notes:
        typer.echo(f"note: {note}", err=True)


def _default_weights(options: ExportCommandOptions) -> str:
    if options.draft_head is not None:
        return "int8"
    return "fp16" if options.runtime == "tensorrt" else "fp32"


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
    from starsd_export.pipeline import require_kind
    from starsd_export.tensorrt_graph import TensorrtOptions

    require_kind("--runtime", options.runtime, ("onnxruntime", "tensorrt"))
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
    given = [name for name in _FOR_TENSORRT if getattr(options, name) != getattr(ExportCommandOptions, name)]
    if given:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names} {'is' if len(given) == 1 else 'are'} for --runtime tensorrt")
    return None


def _parts(listed: str) -> tuple[str, ...]:
    return () if listed == "none" else tuple(part.strip() for part in listed.split(","))


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


def _export_head(options: ExportCommandOptions, source: Path, head: str, weights: str) -> None:
    from starsd_export.draft_heads.bundle import export_draft_bundle
    from starsd_export.draft_heads.fitting import head_kind

    destination = _destination(options, f"{_short_name(options.model)}-{head_kind(head)}-{weights}")
    started = time.monotonic()
    with _steps() as progress:
        bundle = export_draft_bundle(source, head, destination, weights, progress, _public_name(options.model))
    typer.echo(bundle.path)
    typer.echo(f"{_size(bundle.path)} in {time.monotonic() - started:.0f} s, licence {bundle.manifest.licence}")
    for note in bundle.manifest.notes:
        typer.echo(f"note: {note}", err=True)
    if bundle.manifest.spec.kind == "eagle3":
        typer.echo(f"note: its targets run the bundle of `{bundle.manifest.target_export}`", err=True)


def _destination(options: ExportCommandOptions, name: str) -> Path:
    from starsd_edge.bundles.cache import bundles_dir

    return options.output or bundles_dir() / name


def _size(directory: Path) -> str:
    return f"{sum(file.stat().st_size for file in directory.iterdir()) / 1e6:,.0f} MB"


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


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """Show the step that runs: a spinner on a terminal, a line per step elsewhere (standard error)."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: typer.echo(f"export: {step}", err=True)
        return
    with console.status("") as status:
        yield lambda step: status.update(step)
