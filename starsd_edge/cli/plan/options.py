"""The options of `starsd-edge plan`, in the groups of its help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.cli.shared_options import AsJson, QueueOrder, bundle_names
from starsd_edge.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """What the hub's drafter takes."""

    __panel__: ClassVar[str] = "Drafter"

    pass_ms: Annotated[float, typer.Option(min=0, help="Of a pass, whatever it drafts.")] = 2.0
    level_ms: Annotated[float, typer.Option(min=0, help="For each level of the drafts.")] = 1.5
    session_ms: Annotated[float, typer.Option(min=0, help="For each target in a pass.")] = 0.2
    node_ms: Annotated[float, typer.Option(min=0, help="For each guessed token.")] = 0.0
    acceptance: Annotated[
        str, typer.Option(help="Probability that a guess is accepted if those before it were; or by level: 0.8,0.7.")
    ] = "0.7"
    largest_draft: Annotated[
        str, typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft to think of; 8x8x1 is a chain of 8.")
    ] = "8x8x1"
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Most targets in a pass.")] = 16
    order: Annotated[QueueOrder, typer.Option(help="Of the hub's queue.")] = QueueOrder.LATENCY


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """What a round takes at the target."""

    __panel__: ClassVar[str] = "Target and link"

    verify_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS|ROWS=MS,...",
            help="A verify pass: over one row (each further one adds 3 %), or over these. Default: as measured for the "
            "BUNDLE, else 35.",
            show_default=False,
        ),
    ] = None
    own_ms: Annotated[float, typer.Option(min=0, help="Of a round, beside the model.")] = 1.0
    plain_ms: Annotated[
        float | None,
        typer.Option(min=0, help="A plain step; default: a pass over one row, and --own-ms.", show_default=False),
    ] = None
    rtt_ms: Annotated[float, typer.Option(min=0, help="Round-trip time to the hub.")] = 1.0
    mbit: Annotated[float, typer.Option(min=0.001, help="Rate of the link, each way, in Mbit/s.")] = 100.0
    feature_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Features of a token, 0 for drafters that want none. Default: those of the BUNDLE, else 8192.",
            show_default=False,
        ),
    ] = None
    jitter: Annotated[float, typer.Option(min=0, max=3, help="How much returns vary (standard deviation / mean).")] = (
        0.2
    )


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """What an accelerator holds."""

    __panel__: ClassVar[str] = "Memory (with --memory-gib)"

    memory_gib: Annotated[
        float | None, typer.Option(min=0, help="That an accelerator has for targets.", show_default=False)
    ] = None
    weights_gib: Annotated[
        float | None, typer.Option(min=0, help="A target's weights; default: the BUNDLE's.", show_default=False)
    ] = None
    kv_kib: Annotated[
        float | None, typer.Option(min=0, help="A target's KV per token; default: the BUNDLE's.", show_default=False)
    ] = None
    context: Annotated[int, typer.Option(min=1, help="Tokens that each target's KV has places for.")] = 2048
    draft_gib: Annotated[float, typer.Option(min=0, help="The draft model's weights.")] = 0.44
    draft_kv_kib: Annotated[float, typer.Option(min=0, help="The draft model's KV per token.")] = 16.0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of the command."""

    bundle: Annotated[
        str | None,
        typer.Argument(
            help="Bundle of the target model: its measured verify times, features and sizes.",
            autocompletion=bundle_names,
            show_default=False,
        ),
    ] = None
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Plan from measured times: points.json of `bench star`, or service_s, return_s, tokens_per_round.",
            show_default=False,
        ),
    ] = None
    targets: Annotated[
        int | None, typer.Option(min=1, max=512, help="Show so many targets, too.", show_default=False)
    ] = None
    drafter: DrafterOptions
    target: TargetOptions
    memory: MemoryOptions
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_THREADS, help="Of the BUNDLE's measured times; default: all cores.", show_default=False
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 1
    as_json: AsJson = False

    def __post_init__(self) -> None:
        for group in (self.drafter, self.target, self.memory):
            for name, value in vars(group).items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(f"--{name.replace('_', '-')} is a number, not {value}")
        if self.from_file is not None and self.bundle is not None:
            raise UsageError("--from has the times of one star in it: leave the BUNDLE out")
