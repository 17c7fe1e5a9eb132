"""The options of all benches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.options import MAX_THREADS, check_seconds
from starsd_edge.cli.run_draft.command import RunDraftOptions
from starsd_edge.cli.shared_options import (
    Device,
    DraftBranching,
    DraftDepth,
    DraftNodes,
    DraftWait,
    FiguresFile,
    HeadDevice,
    HeadPrecision,
    Prompts,
    QueueOrder,
    TargetBundle,
    Threads,
    bundle_names,
    parse_shape,
)
from starsd_edge.errors import UsageError

if TYPE_CHECKING:
    from starsd_edge.speculation.tree import DraftShape


class HubDrafter(str, Enum):
    """Drafters that a bench can start a hub with."""

    DRAFT = "draft"
    NGRAM = "ngram"


@dataclass(frozen=True, kw_only=True)
class BenchDecodeOptions:
    """The options of the command."""

    bundle: TargetBundle
    draft: Annotated[
        str | None,
        typer.Option(help="Bundle of the hub's draft model or head (drafter draft).", autocompletion=bundle_names),
    ] = None
    drafter: Annotated[
        tuple[HubDrafter, ...],
        typer.Option(help="Drafter of a hub to measure; may be given twice. Default: all there are."),
    ] = ()
    prompts: Prompts = None
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Cut or lengthen every prompt to so many tokens.")] = 64
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every answer.")] = 128
    repeats: Annotated[int, typer.Option(min=1, help="How often all prompts are answered in every way.")] = 1
    draft_depth: DraftDepth = None
    draft_nodes: DraftNodes = None
    draft_branching: DraftBranching = None
    draft_wait: DraftWait = None
    device: Device = "cpu"
    threads: Threads = None
    hub_threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads of the hub's engine. Default: as --threads.")
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the checkpoint the bundle was made from, for transformers and llama.cpp. Default: "
            "the cached one of that name."
        ),
    ] = None
    tune: Annotated[bool, typer.Option(help="Also measure spinning thread pools, and a hub with one thread.")] = False
    json: FiguresFile = None

    def __post_init__(self) -> None:
        if self.drafter and HubDrafter.DRAFT in self.drafter and self.draft is None:
            raise UsageError("--drafter draft needs a draft model: --draft BUNDLE")
        if self.drafter and HubDrafter.DRAFT not in self.drafter and self.draft is not None:
            raise UsageError("--draft is for --drafter draft: leave one of them out")
        check_seconds("--draft-wait", self.draft_wait)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Drafters to measure, the one whose figures have the plain names first."""
        if self.drafter:
            return tuple(dict.fromkeys(kind.value for kind in self.drafter))
        return (HubDrafter.NGRAM.value,) if self.draft is None else (HubDrafter.DRAFT.value, HubDrafter.NGRAM.value)


Trees = Annotated[
    tuple[str, ...], typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft; may be given several times.")
]
_TREE = re.compile(r"(\d+)x(\d+)x(\d+)\Z")


@dataclass(frozen=True, kw_only=True)
class BenchDraftsOptions:
    """The options of the command.

    Raises:
        UsageError: a tree is not written as three numbers.
    """

    bundle: TargetBundle
    draft: Annotated[str, typer.Option(help="Bundle of the draft head or model.", autocompletion=bundle_names)]
    prompts: Prompts = None
    limit: Annotated[int | None, typer.Option(min=1, help="Use only this number of prompts.")] = None
    new_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of every answer.")] = 128
    temperature: Annotated[
        tuple[float, ...], typer.Option(help="Temperature of the answers; may be given several times.")
    ] = (0.0, 1.0)
    tree: Trees = ("4x4x1", "8x5x3", "32x6x8")
    threads: Threads = None
    json: FiguresFile = None

    def __post_init__(self) -> None:
        tree_shapes(self.tree)

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Nodes, depth and branching of each tree."""
        return tree_shapes(self.tree)


def tree_shapes(trees: Sequence[str]) -> list[tuple[int, int, int]]:
    """Nodes, depth and branching of trees as they are written.

    Raises:
        UsageError: one is not written as three numbers.
    """
    shapes = []
    for tree in trees:
        match = _TREE.match(tree)
        if match is None:
            raise UsageError(f"--tree takes NODESxDEPTHxBRANCHING, like 8x5x3, not {tree!r}")
        shapes.append((int(match[1]), int(match[2]), int(match[3])))
    return shapes


_MOST_SESSIONS = 1024


@dataclass(frozen=True, kw_only=True)
class BenchHubStepOptions:
    """The options of the command.

    Raises:
        UsageError: a tree is not written as three numbers, or a number of sessions cannot be measured.
    """

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the draft head: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    sessions: Annotated[
        tuple[int, ...], typer.Option(help="Sessions that are drafted for at once; may be given several times.")
    ] = (1, 2, 4, 8, 16)
    tree: Trees = ("8x5x3", "4x4x1")
    rows: Annotated[int, typer.Option(min=1, help="Tokens that every session has at the beginning.")] = 256
    new_rows: Annotated[int, typer.Option(min=1, help="Tokens that come with every request.")] = 2
    repeats: Annotated[int, typer.Option(min=3, help="Steps of each kind.")] = 30
    threads: Threads = None
    device: Annotated[HeadDevice, typer.Option(help="As in run-draft.")] = HeadDevice.CPU
    draft_precision: Annotated[HeadPrecision, typer.Option(help="As in run-draft.")] = HeadPrecision.AUTO
    json: FiguresFile = None

    def __post_init__(self) -> None:
        tree_shapes(self.tree)
        distinct = len(set(self.sessions)) == len(self.sessions)
        if not distinct or not all(1 <= count <= _MOST_SESSIONS for count in self.sessions):
            raise UsageError(f"--sessions takes numbers from 1 to {_MOST_SESSIONS}, each once")


LEAST_TOKENS = 32
"""Least tokens of an answer that is recorded: a shorter one is nearly all beginning."""


@dataclass(frozen=True, kw_only=True)
class BenchTraceOptions:
    """The options of the command."""

    bundle: TargetBundle
    output: Annotated[
        Path | None, typer.Option(help="File to write. Default: in the cache, with the bundle's name.")
    ] = None
    prompts: Prompts = None
    texts: Annotated[int, typer.Option(min=1, max=1024, help="Number of texts to record.")] = 16
    new_tokens: Annotated[int, typer.Option(min=LEAST_TOKENS, max=8192, help="Most tokens of every answer.")] = 320
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class BenchVerifyOptions:
    """The options of the command.

    Raises:
        UsageError: a number of rows or of tokens cannot be measured.
    """

    bundle: TargetBundle
    device: Annotated[str, typer.Option(help="As in run-target.")] = "cpu"
    threads: Threads = None
    rows: Annotated[
        tuple[int, ...],
        typer.Option(
            help="Rows of a pass, the root included; may be given several times. Default: 1, 2, 4 .. the bundle's "
            "largest tree."
        ),
    ] = ()
    committed: Annotated[
        tuple[int, ...],
        typer.Option(help="Tokens in the KV cache; may be given several times. Default: 16, 256, 1024 where they fit."),
    ] = ()
    passes: Annotated[int, typer.Option(min=3, max=1000, help="Passes of each kind.")] = 15
    keep: Annotated[
        bool,
        typer.Option(help="Do not keep the times, by which run-target sizes its first drafts and which plan reads."),
    ] = True
    json: FiguresFile = None

    def __post_init__(self) -> None:
        if any(rows < 1 for rows in self.rows) or any(tokens < 0 for tokens in self.committed):
            raise UsageError("--rows takes numbers from 1 on, and --committed from 0 on")


MOST_NODES = 63
"""Most nodes of a draft tree: a modelled verify pass has 64 rows, and one is the root."""
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
class TimingOptions:
    """The options of every bench on the timing backend.

    Raises:
        UsageError: the shape is not written as three numbers.
    """

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache. The model itself is not run.",
            autocompletion=bundle_names,
        ),
    ]
    draft: Annotated[
        str | None,
        typer.Option(help="Bundle of the hub's draft head or model. Default: n-grams.", autocompletion=bundle_names),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(help="Texts to replay, from `bench trace`. Default: in the cache, with the bundle's name."),
    ] = None
    verify_ms: Annotated[
        float, typer.Option(min=0.1, max=10_000, help="Milliseconds of a modelled verify pass over one row.")
    ] = 35.0
    verify_growth: Annotated[float, typer.Option(min=0, max=10, help="Share of it that each further row adds.")] = 0.03
    verify_jitter: Annotated[
        float, typer.Option(min=0, max=0.9, help="Largest deviation of a verify pass, as a share of it.")
    ] = 0.05
    draft_ms: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=10_000,
            help="Least milliseconds of a drafter's pass for one session; the part head takes its real time.",
        ),
    ] = 12.0
    draft_growth: Annotated[
        float, typer.Option(min=0, max=10, help="Share of it that each further session in a pass adds.")
    ] = 0.125
    shape: Annotated[str, typer.Option(metavar="NODESxDEPTHxBRANCHING", help="Largest draft.")] = "8x5x4"
    seed: Annotated[int, typer.Option(min=0, help="Seed of the jitter.")] = 0

    def __post_init__(self) -> None:
        parse_shape("--shape", self.shape, MOST_NODES)

    @property
    def largest(self) -> DraftShape:
        """The largest draft."""
        return parse_shape("--shape", self.shape, MOST_NODES)


@dataclass(frozen=True, kw_only=True)
class BenchStarOptions(TimingOptions):
    """The options of the command."""

    output: Annotated[
        Path | None, typer.Option(help="Directory for the figures, the table and the plots. Default: star-bench.")
    ] = None
    quick: Annotated[bool, typer.Option(help="Measure fewer and shorter points, in about two minutes.")] = False
    only: Annotated[tuple[Sweep, ...], typer.Option(help="Run these parts; may be given several times.")] = ()
    targets: Annotated[
        tuple[int, ...],
        typer.Option(
            min=1, max=MAX_TARGETS, help="Numbers of targets in the parts scale and law; may be given several times."
        ),
    ] = ()
    unequal_targets: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_TARGETS,
            help="Number of targets where policies are compared, at round-trip times of 0.1 to 200 ms.",
        ),
    ] = 32
    rtt_ms: Annotated[float, typer.Option(min=0, max=10_000, help="Round-trip time of the usual target.")] = 1.0
    bandwidth: Annotated[
        float | None, typer.Option(min=0.01, help="Rate of every link, each way, in Mbit/s. Default: unlimited.")
    ] = None
    policy: Annotated[
        tuple[QueueOrder, ...],
        typer.Option(
            help="Order of the hub's queue. Of several, the first is used everywhere, and all are compared. Default: "
            "the hub's own, compared with all others."
        ),
    ] = ()
    max_batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Most drafts of one pass of the hub's usual drafter.")
    ] = RunDraftOptions.max_batch
    seconds: Annotated[
        float | None,
        typer.Option(min=0.2, max=3600, help="Seconds that count for every point. Default: 8, with --quick 3."),
    ] = None
    warm_up_rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of each target that do not count.")] = 6
    sessions: Annotated[int, typer.Option(min=1, max=5000, help="Number of sessions in the part crowd.")] = 500

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


@dataclass(frozen=True, kw_only=True)
class BenchRequestsOptions(TimingOptions):
    """The options of the command."""

    requests: Annotated[int, typer.Option(min=2, max=16, help="Number of requests that are answered together.")] = 4
    new_tokens: Annotated[int, typer.Option(min=8, max=8192, help="Most tokens of every answer.")] = 128
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Times that they are answered each way.")] = 3
    rtt_ms: Annotated[float, typer.Option(min=0, max=10_000, help="Round-trip time to the hub.")] = 20.0
    busy_targets: Annotated[
        int, typer.Option(min=1, max=MAX_TARGETS, help="Number of other targets while the hub counts as busy.")
    ] = 8
    json: FiguresFile = None
