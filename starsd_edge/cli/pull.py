"""`starsd-edge pull`: fetch a model by name into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import model_names
from starsd_edge.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """The options of the command."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="Name of a model, or hf:ORG/NAME[@REVISION] on the Hugging Face Hub; a path is used as it is.",
            autocompletion=model_names,
        ),
    ] = None
    list_models: Annotated[bool, typer.Option("--list/--no-list", help="List the models known by name.")] = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "pull", pull, PullOptions)


def pull(options: PullOptions) -> None:
    """Fetch a model into the cache and print its path, size and licence."""
    from starsd_edge.bundles.catalogue import CATALOGUE, find_entry, resolve_model
    from starsd_edge.cli.progress import describe_entry, fetch_progress, megabytes

    if options.list_models:
        for known in CATALOGUE.values():
            typer.echo(describe_entry(known))
        return
    if options.model is None:
        raise UsageError("name a model to fetch; `starsd-edge pull --list` shows the names")
    entry = find_entry(options.model)
    with fetch_progress(entry) as progress:
        path = resolve_model(options.model, progress)
    typer.echo(path)
    typer.echo(f"{megabytes(_size(path))}, licence {entry.licence if entry else 'as its publisher states'}")


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
