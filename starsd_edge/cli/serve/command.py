"""`starsd-edge serve`: a target that answers over HTTP as OpenAI's API does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.logs import LogOptions, logging_to
from starsd_edge.cli.run_target.options import DraftOptions, HubOptions, check_hub_is_used
from starsd_edge.cli.run_target.setup import draft_settings, hub_address
from starsd_edge.cli.shared_options import Context, Device, TargetBundle, Threads
from starsd_edge.errors import UsageError
from starsd_edge.key_file import read_tokens

if TYPE_CHECKING:
    from starsd_jetson.api import OpenTarget
    from starsd_jetson.serve.server import ServeSettings

log = logging.getLogger(__name__)

DEFAULT_PORT = 8318
_KEYS_REMEDY = "clients must show a key: give --api-keys FILE with one or more"


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How it is reached."""

    __panel__: ClassVar[str] = "HTTP"

    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --api-keys.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File with the keys of which clients must show one, a line each, readable by its owner alone.",
            show_default=False,
        ),
    ] = None
    cors_origin: Annotated[
        tuple[str, ...],
        typer.Option(
            help="Origin of web pages that may use the API, like https://chat.example; * is any. May be given several "
            "times.",
            show_default=False,
        ),
    ] = ()
    model_name: Annotated[
        tuple[str, ...],
        typer.Option(
            help="What clients call the model, in place of the bundle's name; may be given several times.",
            show_default=False,
        ),
    ] = ()
    max_queue: Annotated[
        int, typer.Option(min=0, max=4096, help="Requests that may wait; further ones get 429 and Retry-After.")
    ] = 16
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Requests that are answered by turns.")] = 4
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Most tokens of KV of all requests, and of what is kept for the next ones. Default: 4 contexts.",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        for origin in self.cors_origin:
            if origin != "*" and ("://" not in origin or origin.count("/") != 2):
                raise UsageError(f"--cors-origin takes an origin like https://chat.example, or *, not {origin!r}")
        if not all(self.model_name):
            raise UsageError("--model-name must not be empty: leave it out")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """All of them."""

    bundle: TargetBundle
    http: HttpOptions
    hub: HubOptions
    drafts: DraftOptions
    log: LogOptions
    context: Context = None
    device: Device = "cpu"
    threads: Threads = None

    def __post_init__(self) -> None:
        check_hub_is_used(self.hub, self.drafts)


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "serve", serve_target, ServeOptions)


def serve_target(options: ServeOptions) -> None:
    """Answer over HTTP as OpenAI's API does, until Ctrl-C. The text is that of the model alone, whatever a hub does."""
    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.listening import bind
    from starsd_edge.running import listed
    from starsd_edge.runtime.loading import check_device
    from starsd_jetson.serve.server import model_names, serve

    check_device(options.device)
    with logging_to(sys.stderr, options.log):
        settings = _settings(options.http)
        has_keys = bool(settings.door.keys)
        with (
            bind(options.http.host, options.http.port, has_keys, _KEYS_REMEDY) as sock,
            listed("serve", bundles_at(options.bundle), place=_url(sock.getsockname()), hub=options.hub.hub),
            _open_target(options) as target,
        ):
            url = _url(sock.getsockname())
            line = f"listening on {url} model={','.join(model_names(target, settings))}"
            with suppress(KeyboardInterrupt):  # the way to end it
                serve(target, settings, sock, lambda: typer.echo(line))


def _settings(http: HttpOptions) -> ServeSettings:
    from starsd_jetson.serve.door import DoorRules
    from starsd_jetson.serve.server import ServeSettings

    keys = () if http.api_keys is None else read_tokens(http.api_keys)
    door = DoorRules(keys, http.cors_origin)
    return ServeSettings(http.model_name, http.max_queue, http.parallel, http.kv_tokens, door)


@contextmanager
def _open_target(options: ServeOptions) -> Iterator[OpenTarget]:
    """What is said of the hub comes after what is drawn of the loading: on a terminal they would garble each other."""
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_edge.cli.progress import loading_shown
    from starsd_jetson.api import HubAccess, OpenTarget

    hub, address = options.hub, hub_address(options.hub)
    drafts = draft_settings(options.drafts, hub)
    path = find_bundle(options.bundle)
    with loading_shown([path], log.info, draws=not options.log.is_json):
        target = OpenTarget.load(
            load_bundle(path), options.device, options.threads, options.context, drafts, has_hub=address is not None
        )
    with target:
        if address is not None:
            target.connect(HubAccess(address, hub.target_name, hub.require_hub, log.info))
        yield target


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
