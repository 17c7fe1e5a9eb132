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

    pass_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds of each pass of the drafter, whatever it drafts.")
    ] = 2.0
    level_ms: Annotated[float, typer.Option(min=0, help="Milliseconds more for each level of the draft trees.")] = 1.5
    session_ms: Annotated[float, typer.Option(min=0, help="Milliseconds more for each target in a pass.")] = 0.2
    node_ms: Annotated[float, typer.Option(min=0, help="Milliseconds more for each draft token.")] = 0.0
    acceptance: Annotated[
        str,
        typer.Option(help="Acceptance rate of a draft token below an accepted one, or one for each level: 0.8,0.7."),
    ] = "0.7"
    largest_draft: Annotated[
        str,
        typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft tree to consider; 8x8x1 is a chain of 8."),
    ] = "8x8x1"
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Most targets in a pass.")] = 16
    order: Annotated[QueueOrder, typer.Option(help="Order of the hub's queue.")] = QueueOrder.LATENCY


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """What a round takes at the target."""

    __panel__: ClassVar[str] = "Target and link"

    verify_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS|ROWS=MS,...",
            help="Milliseconds of a verify pass over one row (each further row adds 3 %), or by the number of rows. "
            "Default: as measured for the BUNDLE, else 35.",
        ),
    ] = None
    own_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of a round outside the model.")] = 1.0
    plain_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Milliseconds of a step without a draft. Default: a pass over one row, and --own-ms."),
    ] = None
    rtt_ms: Annotated[float, typer.Option(min=0, help="Round-trip time to the hub.")] = 1.0
    mbit: Annotated[float, typer.Option(min=0.001, help="Rate of the link, each way, in Mbit/s.")] = 100.0
    feature_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Bytes of a token's features; 0 for drafters that need none. Default: those of the BUNDLE, else 8192.",
        ),
    ] = None
    jitter: Annotated[
        float, typer.Option(min=0, max=3, help="Variation of the return times (standard deviation / mean).")
    ] = 0.2


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """What an accelerator holds."""

    __panel__: ClassVar[str] = "Memory (with --memory-gib)"

    memory_gib: Annotated[float | None, typer.Option(min=0, help="GiB that an accelerator has for targets.")] = None
    weights_gib: Annotated[
        float | None, typer.Option(min=0, help="GiB of a target's weights. Default: the BUNDLE's.")
    ] = None
    kv_kib: Annotated[
        float | None, typer.Option(min=0, help="KiB of a target's KV per token. Default: the BUNDLE's.")
    ] = None
    context: Annotated[int, typer.Option(min=1, help="Most tokens that the KV of a target holds.")] = 2048
    draft_gib: Annotated[float, typer.Option(min=0, help="GiB of the draft model's weights.")] = 0.44
    draft_kv_kib: Annotated[float, typer.Option(min=0, help="KiB of the draft model's KV per token.")] = 16.0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of the command."""

    bundle: Annotated[
        str | None,
        typer.Argument(
            help="Bundle of the target model: its measured verify times, features and sizes.",
            autocompletion=bundle_names,
        ),
    ] = None
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Plan from measured times: points.json of `bench star`, or service_s, return_s, tokens_per_round.",
        ),
    ] = None
    targets: Annotated[int | None, typer.Option(min=1, max=512, help="Also show this number of targets.")] = None
    drafter: DrafterOptions
    target: TargetOptions
    memory: MemoryOptions
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_THREADS, help="CPU threads of the BUNDLE's measured times. Default: all cores."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1
    as_json: AsJson = False

    def __post_init__(self) -> None:
        for group in (self.drafter, self.target, self.memory):
            for name, value in vars(group).items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(f"--{name.replace('_', '-')} is a number, not {value}")
        if self.from_file is not None and self.bundle is not None:
            raise UsageError("--from has the times of one star in it: leave the BUNDLE out")
