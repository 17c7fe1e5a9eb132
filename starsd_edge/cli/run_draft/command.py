"""`starsd-edge run-draft`: the draft server."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.logs import LogOptions, logging_to
from starsd_edge.cli.options import MAX_THREADS, check_seconds
from starsd_edge.cli.shared_options import AUTO, HeadDevice, HeadPrecision, QueueOrder, bundle_names, parse_hub_shape
from starsd_edge.errors import UsageError
from starsd_edge.key_file import make_token, read_token

if TYPE_CHECKING:
    from starsd_server.drafters.contract import Drafter, DrafterRegistry
    from starsd_server.gate import HubKey
    from starsd_server.offers import Offers

log = logging.getLogger(__name__)

DEFAULT_PORT_RANGE = "9000-9099"


class DrafterKind(str, Enum):
    """Drafters that a hub can be told to use."""

    NGRAM = "ngram"
    CAUSAL_LM = "causal-lm"
    EAGLE = "eagle"


class Isolation(str, Enum):
    """Where targets are served."""

    SHARED = "shared"
    DEDICATED = "dedicated"


@dataclass(frozen=True, kw_only=True)
class RunDraftOptions:
    """The options of the command."""

    bundle: Annotated[
        tuple[str, ...],
        typer.Argument(
            help="Bundle of a draft model or head: a directory, or a name in the cache. Of several, a target gets the "
            "first that fits.",
            autocompletion=bundle_names,
            show_default=False,
        ),
    ] = ()
    drafter: Annotated[DrafterKind | None, typer.Option(help="Default: what the BUNDLE is for; ngram without one.")] = (
        None
    )
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --token-file or --keys.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8317
    isolation: Annotated[
        Isolation, typer.Option(help="shared: one port for all targets; dedicated: a port of its own for each.")
    ] = Isolation.SHARED
    port_range: Annotated[
        str | None, typer.Option(help=f"Ports for --isolation dedicated; default: {DEFAULT_PORT_RANGE}.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that targets must show, readable by its owner alone.")
    ] = None
    make_token: Annotated[
        bool, typer.Option(help="Write a new token into --token-file if it is not there yet.", show_default=False)
    ] = False
    announce: Annotated[
        bool,
        typer.Option(help="Let targets on the local network find this hub (`--hub auto`).", show_default=False),
    ] = False
    keys: Annotated[
        Path | None,
        typer.Option(help="TOML file with a table per key: token-file, and weight or priority of its targets."),
    ] = None
    offer: Annotated[
        tuple[str, ...],
        typer.Option(
            help="A target's bundle to hand to devices that show the token (`pull --from`); can be given again.",
            show_default=False,
        ),
    ] = ()
    require_drafter: Annotated[
        bool,
        typer.Option(help="Refuse targets that the drafter does not fit, instead of n-grams.", show_default=False),
    ] = False
    max_sessions: Annotated[int, typer.Option(help="Sequences drafted for at once: bounds the memory.")] = 64
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Sequences drafted for in one pass.")] = 16
    policy: Annotated[
        QueueOrder,
        typer.Option(
            help="Who is drafted for first. latency: the longest return, and equal shares once targets wait for each "
            "other; drr: equal shares of drafter time; fifo: the first to ask; srf: the shortest return."
        ),
    ] = QueueOrder.LATENCY
    draft_shape: Annotated[
        str,
        typer.Option(
            metavar="auto|fixed:NODESxDEPTHxBRANCHING",
            help="How large drafts are, within what targets ask for. auto: what gains most for each, shorter under "
            "load, none where it does not pay.",
        ),
    ] = AUTO
    resume_grace: Annotated[float, typer.Option(min=0, help="Seconds that a session outlives its lost connection.")] = (
        30.0
    )
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads of the draft model; default: all cores.")
    ] = None
    device: Annotated[
        HeadDevice,
        typer.Option(help="Where drafters are run; auto takes a GPU for heads alone, where torch finds one."),
    ] = HeadDevice.AUTO
    draft_precision: Annotated[
        HeadPrecision,
        typer.Option(help="Precision of heads; auto: float16 on a GPU, the bundle's own weights (int8) on a CPU."),
    ] = HeadPrecision.AUTO
    log: LogOptions

    def __post_init__(self) -> None:
        if self.drafter not in (None, DrafterKind.NGRAM) and not self.bundle:
            raise UsageError(f"--drafter {self.drafter.value} needs a model: starsd-edge run-draft BUNDLE")
        if self.drafter is DrafterKind.NGRAM and self.bundle:
            raise UsageError("--drafter ngram uses no model: leave the BUNDLE out, or leave --drafter out")
        if not self.bundle and (self.device is HeadDevice.CUDA or self.draft_precision is not HeadPrecision.AUTO):
            raise UsageError("n-grams have no use for --device and --draft-precision: give a BUNDLE, or leave them out")
        if self.make_token and self.token_file is None:
            raise UsageError("--make-token writes --token-file: give both")
        if self.announce and self.token_file is None:
            raise UsageError("--announce shows targets that this hub has their token: give --token-file")
        if self.isolation is Isolation.SHARED and self.port_range:
            raise UsageError("--port-range is for --isolation dedicated: give both, or leave it out")
        check_seconds("--resume-grace", self.resume_grace)
        parse_hub_shape("--draft-shape", self.draft_shape)


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "run-draft", run_draft, RunDraftOptions)


def run_draft(options: RunDraftOptions) -> None:
    """Run the draft server: draft tokens for any number of targets, until Ctrl-C."""
    run_hub(options)


def run_hub(options: RunDraftOptions, wrap: Callable[[Drafter], Drafter] = lambda drafter: drafter) -> None:
    """The same with drafters as `wrap` makes them: `bench star` models slower ones."""
    import asyncio

    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.listening import bind
    from starsd_edge.protocol.hub_side import HubLimits
    from starsd_edge.running import listed
    from starsd_server.hub import serve_hub
    from starsd_server.settings import DoorSettings, DraftingSettings, HubSettings

    with logging_to(sys.stderr, options.log):
        token = _token(options)
        limits = HubLimits(max_sessions=options.max_sessions, resume_grace_s=options.resume_grace)
        own_ports = _own_ports(options)
        drafting = DraftingSettings(
            options.policy.value, options.max_batch, parse_hub_shape("--draft-shape", options.draft_shape)
        )
        door = DoorSettings(token, _keys(options), own_ports=own_ports)
        settings = HubSettings(door, limits, drafting)
        with (
            bind(options.host, options.port, has_token=bool(door.all_keys)) as sock,
            listed("run-draft", bundles_at(*options.bundle, *options.offer), place=_url(sock.getsockname())),
        ):
            registry, offers = _registry(options, wrap), _offers(options.offer)
            line = f"listening on {_url(sock.getsockname())} drafter={registry.names}"
            if own_ports is not None:
                line += f" ports={own_ports.start}-{own_ports.stop - 1}"
            if offers is not None:
                line += f" offers={','.join(bundle.name for bundle in offers.bundles)}"
            with _announced(options, sock.getsockname(), token):
                asyncio.run(serve_hub(registry, settings, sock, lambda: typer.echo(line), offers))


@contextmanager
def _announced(options: RunDraftOptions, address: tuple[str, int], token: str | None) -> Iterator[None]:
    """On the local network, where that is wanted."""
    if not options.announce or token is None:
        yield
        return
    import socket

    from starsd_edge.discovery import Announcement, addresses_to_announce, announced

    host, port = address[:2]
    with announced(Announcement.of(socket.gethostname(), addresses_to_announce(host), port, token)):
        log.info("announced on the local network")
        yield


def _token(options: RunDraftOptions) -> str | None:
    if options.token_file is None:
        return None
    if options.make_token and make_token(options.token_file):
        log.info("wrote a new token into %s: targets need a copy of it", options.token_file)
    return read_token(options.token_file)


def _offers(names: Sequence[str]) -> Offers | None:
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_server.offers import Offers

    return Offers.of([find_bundle(name) for name in names]) if names else None


def _keys(options: RunDraftOptions) -> tuple[HubKey, ...]:
    from starsd_edge.cli.run_draft.setup import read_keys

    return () if options.keys is None else read_keys(options.keys)


def _own_ports(options: RunDraftOptions) -> range | None:
    from starsd_server.binding import parse_port_range

    if options.isolation is Isolation.SHARED:
        return None
    return parse_port_range(options.port_range or DEFAULT_PORT_RANGE)


def _registry(options: RunDraftOptions, wrap: Callable[[Drafter], Drafter]) -> DrafterRegistry:
    from starsd_server.drafters.contract import DrafterRegistry
    from starsd_server.drafters.ngram import NgramDrafter

    fallback = wrap(NgramDrafter(options.max_sessions))
    preferred = [wrap(drafter) for drafter in _drafters(options)] if options.bundle else [fallback]
    return DrafterRegistry(preferred, fallback, options.require_drafter)


def _drafters(options: RunDraftOptions) -> list[Drafter]:
    from starsd_edge.bundles.catalogue import find_bundle
    from starsd_edge.cli.progress import loading_shown
    from starsd_edge.cli.run_draft.setup import drafter_kind, open_drafters

    paths = [find_bundle(bundle) for bundle in options.bundle]
    for path in paths:
        if options.drafter is not None and options.drafter.value != drafter_kind(path):
            raise UsageError(f"{path} is a bundle for --drafter {drafter_kind(path)}: leave --drafter out")
    with loading_shown(paths, log.info, draws=not options.log.is_json):
        drafters = open_drafters(
            paths, options.max_sessions, options.threads, options.device.value, options.draft_precision.value
        )
    log.info("loaded %s", ", ".join(path.name for path in paths))
    return drafters


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
