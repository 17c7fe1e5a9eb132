"""`starsd-edge pull`: fetch a model by name, or a bundle from a hub, into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.shared_options import TokenFile, model_names
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
    hub: Annotated[
        str | None,
        typer.Option(
            "--from", help="Fetch a bundle from this hub, which offers it (`run-draft --offer`), and not a model."
        ),
    ] = None
    token_file: TokenFile = None
    list_models: Annotated[bool, typer.Option("--list/--no-list", help="List the models known by name.")] = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "pull", pull, PullOptions)


def pull(options: PullOptions) -> None:
    """Fetch a model, or with --from a bundle of a hub, into the cache and print its path, size and licence."""
    from starsd_edge.bundles.catalogue import CATALOGUE, find_entry, resolve_model
    from starsd_edge.cli.progress import describe_entry, fetch_progress, megabytes

    if options.hub is not None:
        _fetch_from(options.hub, options)
        return
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


def _fetch_from(hub: str, options: PullOptions) -> None:
    import asyncio

    from starsd_edge.cli.progress import bytes_shown, megabytes
    from starsd_edge.cli.streams import printable
    from starsd_jetson.api import hub_address
    from starsd_jetson.bundle_fetch import BundleFetch

    with bytes_shown(options.model or "") as progress:
        fetch = BundleFetch(hub_address(hub, options.token_file), progress)
        if options.list_models:
            for bundle in asyncio.run(fetch.offers()):
                typer.echo(f"{bundle.name}: {megabytes(bundle.size)}, of {printable(bundle.source)}")
            return
        if options.model is None:
            raise UsageError(f"name a bundle to fetch: `starsd-edge pull --from {hub} --list` shows them")
        fetched = asyncio.run(fetch.fetch(options.model))
    typer.echo(fetched.path)
    what = "here already" if fetched.was_here else f"{megabytes(fetched.offered.size)}, every file as its hash says"
    typer.echo(f"{what}; manifest {fetched.offered.manifest_sha256}")


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
