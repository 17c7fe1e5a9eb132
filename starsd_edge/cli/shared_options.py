"""What the options of several commands share: draft shapes as users write them, choices, and what the shell offers for
a word that is being typed. That runs at every press of the key, so this module imports next to nothing.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.speculation.tree import DraftShape


MOST_NODES = 1024
AUTO = "auto"
_FIXED = "fixed:"


def parse_shape(option: str, text: str, most_nodes: int = MOST_NODES) -> DraftShape:
    """NODESxDEPTHxBRANCHING, or NODESxDEPTH for a chain.

    Raises:
        UsageError: it is neither.
    """
    from starsd_edge.speculation.tree import DraftShape

    parts = text.lower().split("x")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"{option} is NODESxDEPTHxBRANCHING, like 16x5x2, not {text!r}")
    nodes, depth, branching = *map(int, parts), *[1] * (3 - len(parts))
    if not (1 <= nodes <= most_nodes and 1 <= depth <= nodes and branching >= 1):
        raise UsageError(f"{option} {text} is no draft: at most {most_nodes} nodes, and no more levels than nodes")
    return DraftShape(nodes, depth, branching)


def parse_hub_shape(option: str, text: str) -> DraftShape | None:
    """`auto` (None), or `fixed:` and a shape.

    Raises:
        UsageError: it is neither.
    """
    if text == AUTO:
        return None
    if not text.startswith(_FIXED):
        raise UsageError(f"{option} is auto, or fixed:NODESxDEPTHxBRANCHING, not {text!r}")
    return parse_shape(option, text.removeprefix(_FIXED))


class QueueOrder(str, Enum):
    """In which order waiting requests are drafted."""

    LATENCY = "latency"
    DRR = "drr"
    FIFO = "fifo"
    SRF = "srf"


class HeadDevice(str, Enum):
    """Devices that a head can be run on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class HeadPrecision(str, Enum):
    """Numbers that a head can be run with."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def bundle_names(incomplete: str) -> list[str]:
    """Bundles in the cache; the shell itself offers paths where no name fits."""
    from starsd_edge.bundles import cache

    try:
        return [name for name in cache.bundle_names() if name.startswith(incomplete)]
    except StarsdError:  # there is no cache
        return []


def model_names(incomplete: str) -> list[str]:
    """Models that can be fetched by name."""
    from starsd_edge.bundles.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


def model_and_bundle_names(incomplete: str) -> list[str]:
    """What `run` takes by name."""
    return [*model_names(incomplete), *bundle_names(incomplete)]


TargetBundle = Annotated[
    str,
    typer.Argument(
        help="Bundle of the target model: a directory, or a name in the cache.", autocompletion=bundle_names
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads of each engine. Default: all cores.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda or jetson: where the model runs.")]
Context = Annotated[
    int | None, typer.Option(min=2, help="Most tokens of prompt and answer together.", show_default=False)
]
SystemPrompt = Annotated[
    str, typer.Option(help="What the model is told before anything else, where its chat template takes it.")
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the hub's bearer token.")]
AsJson = Annotated[bool, typer.Option("--json/--no-json", help="One JSON object, nothing else.")]
FiguresFile = Annotated[Path | None, typer.Option(help="Also write the figures to this file, as JSON.")]
Prompts = Annotated[Path | None, typer.Option(help="File with one prompt per line. Default: prompts that are shipped.")]
DraftDepth = Annotated[int | None, typer.Option(min=1, help="Most levels of a draft tree: draft tokens in a row.")]
DraftNodes = Annotated[int | None, typer.Option(min=1, help="Most draft tokens per round.")]
DraftBranching = Annotated[int | None, typer.Option(min=1, help="Most children of one node of a draft tree.")]
DraftWait = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds to wait for every draft, all of which is then verified. Default: wait and verify as far as it "
        "pays.",
    ),
]
