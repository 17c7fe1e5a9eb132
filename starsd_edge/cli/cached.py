"""`starsd-edge list` and `rm`: what is in the cache, and taking it out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import AsJson
from starsd_edge.errors import BundleError, UsageError, did_you_mean

_TARGET, _HEAD, _ENGINE, _MODEL = "target bundle", "draft head", "engine", "checkpoint"
_DAMAGED = "damaged: export it again"


@dataclass(frozen=True)
class CachedItem:
    """A directory in the cache that a command made.

    Attributes:
        name: what commands call it.
        kind: what it is for.
        bytes: of its files.
        note: what is to be known of it; "" for nothing.
    """

    name: str
    kind: str
    bytes: int
    note: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """The options of `list`."""

    json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """The options of `rm`."""

    names: Annotated[tuple[str, ...], typer.Argument(help="Names as `list` shows them.", show_default=False)]
    yes: Annotated[bool, typer.Option(help="Do not ask.", show_default=False)] = False
    force: Annotated[
        bool, typer.Option(help="Also remove what a running command uses (`ps` lists them).", show_default=False)
    ] = False


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "list", list_cached, ListOptions)
    add_command(app, "rm", remove, RemoveOptions)


def list_cached(options: ListOptions) -> None:
    """List the models, bundles and engines in the cache."""
    from rich.table import Table

    from starsd_edge.bundles.cache import cache_dir
    from starsd_edge.cli.output import output_console
    from starsd_edge.cli.progress import megabytes

    items = sorted(cached_items(), key=lambda item: (item.kind, item.name))
    if options.json:
        sys.stdout.write(json.dumps({"cache": str(cache_dir()), "items": [asdict(item) for item in items]}) + "\n")
        return
    if not items:
        typer.echo(f"nothing is in {cache_dir()}: `starsd-edge run MODEL` begins, `pull --list` names models")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for item in items:
        table.add_row(item.name, item.kind, megabytes(item.bytes), item.note)
    output_console().print(table)


def remove(options: RemoveOptions) -> None:
    """Take models, bundles or engines out of the cache; what is elsewhere is left alone."""
    from starsd_edge.cli.progress import megabytes

    if not options.names:
        raise UsageError("name what to remove: `starsd-edge list` shows what there is")
    found = {item.name: item for item in cached_items()}
    for name in options.names:
        if name not in found:
            meant = did_you_mean(name, found) or f" (there are {', '.join(found) or 'none'})"
            raise UsageError(f"nothing in the cache is named {name!r}{meant}")
    chosen = [found[name] for name in dict.fromkeys(options.names)]
    if not options.force:
        _require_unused(chosen)
    if not options.yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: give --yes")
        whole = megabytes(sum(item.bytes for item in chosen))
        typer.confirm(f"remove {', '.join(item.name for item in chosen)} ({whole})?", abort=True, err=True)
    for item in chosen:
        shutil.rmtree(item.path)
        typer.echo(f"removed {item.name}, {megabytes(item.bytes)}")


def _require_unused(items: Sequence[CachedItem]) -> None:
    from starsd_edge.running import users_of

    for item in items:
        if users := users_of(Path(item.path)):
            who = ", ".join(f"{user.command} (process {user.pid})" for user in users)
            raise UsageError(f"{item.name} is used by {who}: end it first, or give --force")


def cached_items() -> Iterator[CachedItem]:
    """What is in the cache. A name that two things have goes with its kind: a bundle before a checkpoint."""
    from starsd_edge.bundles.cache import bundle_names, bundles_dir, engines_dir, known_cache, models_dir

    if known_cache() is None:
        return
    taken: set[str] = set()
    for name in bundle_names():
        taken.add(name)
        yield _bundle(bundles_dir() / name)
    for directory, kind in ((engines_dir(), _ENGINE), (models_dir(), _MODEL)):
        for path in sorted(directory.glob("[!.]*")) if directory.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                name = path.name if path.name not in taken else f"{directory.name}/{path.name}"
                taken.add(name)
                yield CachedItem(name, kind, _size(path), "", str(path))


def _bundle(path: Path) -> CachedItem:
    from starsd_edge.bundles.bundle import TARGET_KIND, bundle_kind, load_bundle
    from starsd_edge.bundles.manifest import GRAPH_REVISION

    kind, note = _TARGET, ""
    try:
        if bundle_kind(path) != TARGET_KIND:
            kind = _HEAD
        elif (revision := load_bundle(path, check_files=False).manifest.graph.revision) != GRAPH_REVISION:
            note = f"graph revision {revision}, not {GRAPH_REVISION}: export it again"
    except BundleError:
        note = _DAMAGED
    return CachedItem(path.name, kind, _size(path), note, str(path))


def _size(directory: Path) -> int:
    """Bytes of its files; of two names of one file both count."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file() and not file.is_symlink())
