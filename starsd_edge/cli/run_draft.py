"""`starsd-edge run-draft`: the draft server."""

from __future__ import annotations

import logging
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.token_file import read_token
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_server.drafters.contract import Drafter
    from starsd_server.drafters.registry import DrafterRegistry

log = logging.getLogger(__name__)

DEFAULT_PORT_RANGE = "9000-9099"


class DrafterKind(str, Enum):
    """Drafters that a hub can be told to use."""

    NGRAM = "ngram"
    CAUSAL_LM = "causal-lm"


class Isolation(str, Enum):
    """Where targets are served."""

    SHARED = "shared"
    DEDICATED = "dedicated"


class LogLevel(str, Enum):
    """How much goes to standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run-draft")(run_draft)


def run_draft(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle of the draft model: a directory, or a name in the cache.")
    ] = None,
    drafter: Annotated[
        DrafterKind | None, typer.Option(help="Default: causal-lm with a BUNDLE, ngram without one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8317,
    isolation: Annotated[
        Isolation, typer.Option(help="shared: one port for all targets; dedicated: a port of its own for each.")
    ] = Isolation.SHARED,
    port_range: Annotated[
        str | None, typer.Option(help=f"Ports for --isolation dedicated; default: {DEFAULT_PORT_RANGE}.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that targets must show, readable by its owner alone.")
    ] = None,
    require_drafter: Annotated[
        bool,
        typer.Option("--require-drafter", help="Refuse targets that the drafter does not fit, instead of n-grams."),
    ] = False,
    max_sessions: Annotated[int, typer.Option(help="Sequences drafted for at once: bounds the memory.")] = 64,
    resume_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that a session outlives its lost connection.")
    ] = 30.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the draft model; default: all cores.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much goes to standard error.")] = LogLevel.INFO,
) -> None:
    """Run the draft server: guess tokens for any number of targets, until Ctrl-C."""
    import asyncio

    from starsd_edge.protocol.hub_side import HubLimits
    from starsd_server.binding import bind
    from starsd_server.hub import serve_hub
    from starsd_server.settings import DoorSettings, HubSettings

    _log_to_stderr(log_level)
    kind = _kind(bundle, drafter)
    token = None if token_file is None else read_token(token_file)
    limits = HubLimits(max_sessions=max_sessions, resume_grace_s=resume_grace)
    own_ports = _own_ports(isolation, port_range)
    settings = HubSettings(DoorSettings(token=token, own_ports=own_ports), limits)
    with bind(host, port, has_token=token is not None) as sock:
        registry = _registry(kind, bundle, require_drafter, max_sessions, threads)
        line = f"listening on {_url(sock.getsockname())} drafter={kind.value}"
        if own_ports is not None:
            line += f" ports={own_ports.start}-{own_ports.stop - 1}"
        asyncio.run(serve_hub(registry, settings, sock, lambda: typer.echo(line)))


def _own_ports(isolation: Isolation, port_range: str | None) -> range | None:
    from starsd_server.binding import parse_port_range

    if isolation is Isolation.DEDICATED:
        return parse_port_range(port_range or DEFAULT_PORT_RANGE)
    if port_range is not None:
        raise UsageError("--port-range is for --isolation dedicated: give both, or leave it out")
    return None


def _kind(bundle: str | None, drafter: DrafterKind | None) -> DrafterKind:
    if drafter is None:
        return DrafterKind.NGRAM if bundle is None else DrafterKind.CAUSAL_LM
    if drafter is DrafterKind.CAUSAL_LM and bundle is None:
        raise UsageError("--drafter causal-lm needs a model: starsd-edge run-draft BUNDLE")
    if drafter is DrafterKind.NGRAM and bundle is not None:
        raise UsageError("--drafter ngram uses no model: leave the BUNDLE out, or use --drafter causal-lm")
    return drafter


def _registry(
    kind: DrafterKind, bundle: str | None, required: bool, max_sessions: int, threads: int | None
) -> DrafterRegistry:
    from starsd_server.drafters.ngram import NgramDrafter
    from starsd_server.drafters.registry import DrafterRegistry

    fallback = NgramDrafter(max_sessions)
    if kind is DrafterKind.NGRAM or bundle is None:
        return DrafterRegistry([fallback], fallback, required)
    return DrafterRegistry([_causal_lm(bundle, max_sessions, threads)], fallback, required)


def _causal_lm(name_or_path: str, max_sessions: int, threads: int | None) -> Drafter:
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.bundles.cache import find_bundle
    from starsd_edge.runtime.loading import open_engine
    from starsd_server.drafters.causal_lm import CausalLmDrafter

    bundle = load_bundle(find_bundle(name_or_path))
    manifest = bundle.manifest
    log.info("loading %s", manifest.name)
    engine = open_engine(bundle, threads=threads)
    return CausalLmDrafter(engine, manifest.fingerprints.tokenizer_fp, manifest.model.tokenizer_size, max_sessions)


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


def _log_to_stderr(level: LogLevel) -> None:
    logging.basicConfig(
        level=level.value.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    # This library writes out frames at its debug level, and with them tags and tokens; at its error level, a traceback
    # for every stranger that cannot shake hands. What matters of its errors is in our own log.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
