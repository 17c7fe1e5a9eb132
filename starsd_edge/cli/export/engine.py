"""`starsd-edge export --engine`: from a bundle, or from a model by way of its bundle, to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starsd_edge.errors import BundleError, UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.export.options import ExportCommandOptions
    from starsd_export.engines.engine_export import BuiltEngine
    from starsd_export.engines.worker import Progress

_NOTE_RTX = (
    "note: TensorRT-RTX engines are for RTX GPUs of this compute capability; a Jetson builds its own, on the device, "
    "with --engine tensorrt"
)


def build_engine(options: ExportCommandOptions, export_graph: Callable[[ExportCommandOptions], Path]) -> None:
    """Build an engine and print where it is.

    Args:
        export_graph: makes the bundle of a model.

    Raises:
        UsageError: options that do not go together.
    """
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_export.engines.engine_export import EngineOptions, export_engine

    if options.draft_head is not None:
        raise UsageError("draft heads run on ONNX Runtime: leave --engine away")
    kind = EngineOptions(options.engine or "", options.compute_capability, options.context)
    place = _bundle_at(options.model)
    if place is not None:
        _require_no_kind(options)
    bundle = load_bundle(place or export_graph(options))
    with _shown() as progress:
        built = export_engine(bundle, kind, options.output, progress)
    _print(built)


def _bundle_at(name: str) -> Path | None:
    """The bundle of this name or at this path; None where it is a model's."""
    from starsd_edge.bundles.cache import MANIFEST_NAME
    from starsd_edge.bundles.catalogue import find_bundle

    try:
        path = find_bundle(name)
    except BundleError:
        return None
    return path if (path / MANIFEST_NAME).is_file() else None


def _require_no_kind(options: ExportCommandOptions) -> None:
    kinds = (
        "weights",
        "block",
        "head_weights",
        "embedding_weights",
        "keep_int8",
        "calibration",
        "kv_strategy",
        "kv",
        "features_for",
        "chat_template",
        "also_end",
    )
    given = [name for name in kinds if getattr(options, name) != getattr(type(options), name)]
    if given:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{options.model} is a bundle, whose graph is what it is: leave {names} away")


def _print(built: BuiltEngine) -> None:
    engine, limits = built.manifest, built.manifest.limits
    typer.echo(built.path)
    made = (
        "built before"
        if built.was_there
        else f"built in {engine.build_seconds:.0f} s with {engine.build_memory_bytes / 1e9:.2f} GB of memory"
    )
    kinds = ", ".join(engine.compute_capabilities)
    typer.echo(f"{engine.plan_bytes / 1e6:,.0f} MB for {kinds}, {engine.library} {engine.version}, {made}")
    typer.echo(
        f"up to {limits.max_context} tokens, prefill in chunks of {limits.max_chunk}, trees of {limits.max_tree} rows"
    )
    if engine.library == "tensorrt_rtx":
        typer.echo(_NOTE_RTX, err=True)


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Show how far the build is: a spinner on a terminal, a line for each phase elsewhere (standard error)."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda report: None if report.done else typer.echo(f"engine: {report.phase}", err=True)
        return
    with console.status("building the engine") as status:
        yield lambda report: status.update(f"{report.phase} ({report.done} of {report.of})")
