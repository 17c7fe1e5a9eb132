"""The options of `starsd-edge doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from starsd_edge.cli.shared_options import AsJson, Threads, TokenFile, bundle_names
from starsd_edge.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of the command.

    Raises:
        UsageError: options that do not go together.
    """

    named: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="BUNDLE",
            help="Bundles to check; all in the cache where none is named.",
            autocompletion=bundle_names,
        ),
    ] = ()
    bundle: Annotated[
        tuple[str, ...], typer.Option(metavar="BUNDLE", help="The same, as an option.", autocompletion=bundle_names)
    ] = ()
    hub: Annotated[str | None, typer.Option(help="Also see whether this hub lets the bundles in.")] = None
    network: Annotated[
        str | None, typer.Option(metavar="HUB", help="Instead, check the link to this hub and predict what it gains.")
    ] = None
    token_file: TokenFile = None
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Check that a hub can listen on this port, or does. Default: 8317."),
    ] = None
    device: Annotated[str, typer.Option(help="With --network: where the model runs, as in run-target.")] = "cpu"
    threads: Threads = None
    acceptance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="With --network: predict for this acceptance rate of a draft token, not for the measured one.",
        ),
    ] = None
    remeasure: Annotated[
        bool, typer.Option(help="With --network: time verify passes again instead of using kept times.")
    ] = False
    as_json: AsJson = False

    @property
    def bundles(self) -> tuple[str, ...]:
        """Those named either way."""
        return (*self.named, *self.bundle)

    def __post_init__(self) -> None:
        if self.network and (self.hub or self.port is not None):
            raise UsageError("--network checks the link and nothing else: leave out --hub and --port")
        if not self.network and (self.acceptance is not None or self.remeasure or self.device != "cpu"):
            raise UsageError("--acceptance, --remeasure and --device need --network, the address of the hub")
        if self.network and len(self.bundles) > 1:
            raise UsageError("--network predicts for one bundle: name one")
