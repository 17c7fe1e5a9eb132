"""`starsd-edge export`: a checkpoint becomes a bundle that targets and hubs run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.completion import model_names
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_export.pipeline import ExportOptions


@dataclass(frozen=True, kw_only=True)
class ExportCommandOptions:
    """The options of the command."""

    model: Annotated[
        str,
        typer.Argument(
            help="Name of a model (`pull --list`), hf:ORG/NAME, a GGUF file or a safetensors directory.",
            autocompletion=model_names,
        ),
    ]
    weights: Annotated[
        str | None,
        typer.Option(
            help="fp32, or int8 (weight-only, for the CPU). Default: fp32 for a model, int8 for a head.",
            show_default=False,
        ),
    ] = None
    kv: Annotated[str, typer.Option(help="KV cache: float16, or float32 as a CPU reference.")] = "float16"
    draft_head: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Instead, make a draft bundle for hubs: this head, of `train-draft` or published, with what it needs "
            "of the model; shipped takes the one that comes with this program.",
            show_default=False,
        ),
    ] = None
    features_for: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Let the target give the features that this published EAGLE-3 head reads. Heads of EAGLE-1, EAGLE-2 "
            "and `train-draft` need no such thing.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory of the bundle. Default: in the cache, found by its name later."),
    ] = None

    def __post_init__(self) -> None:
        if self.draft_head is not None and self.features_for is not None:
            raise UsageError(
                "--draft-head makes the hub's bundle and --features-for the target's: run export once with each"
            )


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "export", export, ExportCommandOptions)


def export(options: ExportCommandOptions) -> None:
    """Export a model to a bundle: graph, weights, tokenizer and a manifest with a hash of every file.

    The graph is compared with the model it was made from before the bundle is put in place. With --draft-head it is a
    head's bundle, for `run-draft`.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # the loader's own bars, between our steps
    from starsd_edge.bundles.catalogue import find_entry, resolve_model
    from starsd_edge.cli.fetching import fetch_progress
    from starsd_export.pipeline import ExportOptions

    weights = options.weights or ("fp32" if options.draft_head is None else "int8")
    kind = ExportOptions(weights=weights, kv_dtype=options.kv, features_for=options.features_for)
    with fetch_progress(find_entry(options.model)) as fetched:
        source = resolve_model(options.model, fetched)
    if options.draft_head is not None:
        _export_head(options, source, options.draft_head, weights)
    else:
        _export_model(options, source, kind)


def _export_model(options: ExportCommandOptions, source: Path, kind: ExportOptions) -> None:
    from starsd_edge.bundles.hugging_face import parse_hub_name
    from starsd_export.pipeline import export_bundle

    hub_name = parse_hub_name(options.model)
    kinds = (kind.weights, *(["kv32"] if options.kv != "float16" else []), *(["eagle3"] if kind.features_for else []))
    name = "-".join((_short_name(options.model), *kinds))
    label = f"{hub_name.repository}@{source.name}" if hub_name else None  # its directory is named by the commit
    started = time.monotonic()
    with _steps() as progress:
        bundle = export_bundle(source, _destination(options, name), replace(kind, name=name, source=label), progress)
    worst = max(bundle.manifest.parity.values())
    typer.echo(bundle.path)
    typer.echo(f"{_size(bundle.path)} in {time.monotonic() - started:.0f} s, licence {bundle.manifest.licence}")
    typer.echo(f"parity with transformers: within {worst:.1e}, chains bit for bit")
    for note in bundle.manifest.notes:
        typer.echo(f"note: {note}", err=True)


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
