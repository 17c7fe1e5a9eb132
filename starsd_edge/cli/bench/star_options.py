"""The options of `bench star`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.draft_shapes import QueueOrder, parse_shape
from starsd_edge.cli.run_draft.command import RunDraftOptions

if TYPE_CHECKING:
    from starsd_edge.speculation.tree import DraftShape

MOST_NODES = 63
"""A modelled verify pass has room for so many, and the root."""
MAX_TARGETS = 128
_QUICK_TARGETS, _TARGETS = (1, 4, 16), (1, 2, 4, 8, 16, 32)
_QUICK_LAW, _LAW = (1, 2, 4, 6, 8), (1, 2, 3, 4, 5, 6, 7, 8)
_QUICK_RTTS, _RTTS = (1.0, 50.0), (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_QUICK_SECONDS, _SECONDS = 3.0, 8.0


class Sweep(str, Enum):
    """Parts that can be run alone."""

    BASELINES = "baselines"
    LAW = "law"
    SCALE = "scale"
    HEAD = "head"
    RTT = "rtt"
    POLICY = "policy"
    BATCH = "batch"
    SHAPE = "shape"
    CROWD = "crowd"


@dataclass(frozen=True, kw_only=True)
class BenchStarOptions:
    """The options of the command."""

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache. The model itself is not run.",
            autocompletion=bundle_names,
        ),
    ]
    draft: Annotated[
        str | None,
        typer.Option(
            help="Bundle of the hub's draft head or model; n-grams without one.",
            autocompletion=bundle_names,
            show_default=False,
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Texts to replay, from `bench trace`; default: the one of the bundle's name in the cache.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the figures, the table and the plots; default: star-bench.", show_default=False
        ),
    ] = None
    quick: Annotated[bool, typer.Option(help="About two minutes: fewer points, shorter ones.", show_default=False)] = (
        False
    )
    only: Annotated[tuple[Sweep, ...], typer.Option(help="Run these parts; may be given several times.")] = ()
    targets: Annotated[
        tuple[int, ...],
        typer.Option(min=1, max=MAX_TARGETS, help="N of the sweeps scale and law; may be given several times."),
    ] = ()
    unequal_targets: Annotated[
        int, typer.Option(min=1, max=MAX_TARGETS, help="N where policies are compared, at distances of 0.1 to 200 ms.")
    ] = 32
    rtt_ms: Annotated[float, typer.Option(min=0, max=10_000, help="Round-trip time of the usual target.")] = 1.0
    bandwidth: Annotated[
        float | None,
        typer.Option(min=0.01, help="Mbit/s of every link, each way; unlimited without it.", show_default=False),
    ] = None
    verify_ms: Annotated[float, typer.Option(min=0.1, max=10_000, help="A modelled verify pass over one row.")] = 35.0
    verify_growth: Annotated[
        float, typer.Option(min=0, max=10, help="What each further row adds to it, as a share.")
    ] = 0.03
    verify_jitter: Annotated[
        float, typer.Option(min=0, max=0.9, help="Largest deviation of a verify pass, as a share.")
    ] = 0.05
    draft_ms: Annotated[
        float,
        typer.Option(min=0.1, max=10_000, help="Least time of the hub's pass for one session, but in the part head."),
    ] = 12.0
    draft_growth: Annotated[
        float,
        typer.Option(min=0, max=10, help="What each further session of a pass adds to it, as a share."),
    ] = 0.125
    shape: Annotated[str, typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft.")] = "8x5x4"
    policy: Annotated[
        tuple[QueueOrder, ...],
        typer.Option(
            help="The hub's policy; of several, the first is the usual one, and all are compared. Default: its own, "
            "compared with all others.",
            show_default=False,
        ),
    ] = ()
    max_batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Most drafts of one pass of the hub's usual drafter.")
    ] = RunDraftOptions.max_batch
    seconds: Annotated[
        float | None,
        typer.Option(min=0.2, max=3600, help="That count of every point; default: 8, with --quick 3."),
    ] = None
    warm_up_rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of each target that do not count.")] = 6
    sessions: Annotated[int, typer.Option(min=1, max=5000, help="Sessions of the crowd.")] = 500
    seed: Annotated[int, typer.Option(min=0, help="Of the jitter.")] = 0

    def __post_init__(self) -> None:
        parse_shape("--shape", self.shape, MOST_NODES)

    @property
    def largest(self) -> DraftShape:
        """The largest draft."""
        return parse_shape("--shape", self.shape, MOST_NODES)

    @property
    def directory(self) -> Path:
        """Where the results go."""
        return self.output or Path("star-bench")

    @property
    def policies(self) -> tuple[str, ...]:
        """To compare, the usual one first."""
        usual = (RunDraftOptions.policy, *QueueOrder)
        return tuple(dict.fromkeys(policy.value for policy in self.policy or usual))

    @property
    def point_seconds(self) -> float:
        """Of every point."""
        return self.seconds or (_QUICK_SECONDS if self.quick else _SECONDS)

    @property
    def scale_targets(self) -> tuple[int, ...]:
        """N of the scale sweep, rising."""
        return tuple(sorted(set(self.targets))) or (_QUICK_TARGETS if self.quick else _TARGETS)

    @property
    def law_targets(self) -> tuple[int, ...]:
        """N of the law runs, rising."""
        return tuple(sorted(set(self.targets))) or (_QUICK_LAW if self.quick else _LAW)

    @property
    def rtts_s(self) -> tuple[float, ...]:
        """Of the RTT sweep, in seconds."""
        return tuple(rtt / 1e3 for rtt in (_QUICK_RTTS if self.quick else _RTTS))
