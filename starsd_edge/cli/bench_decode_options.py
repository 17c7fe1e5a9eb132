"""The options of `bench decode`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.cli.completion import bundle_names
from starsd_edge.cli.options import MAX_THREADS, check_seconds
from starsd_edge.errors import UsageError


class HubDrafter(str, Enum):
    """Drafters that a bench can start a hub with."""

    DRAFT = "draft"
    NGRAM = "ngram"


@dataclass(frozen=True, kw_only=True)
class BenchDecodeOptions:
    """The options of the command."""

    bundle: Annotated[
        str,
        typer.Argument(
            help="Bundle of the target model: a directory, or a name in the cache.", autocompletion=bundle_names
        ),
    ]
    draft: Annotated[
        str | None,
        typer.Option(
            help="Bundle of the hub's draft model or head (drafter draft).",
            autocompletion=bundle_names,
            show_default=False,
        ),
    ] = None
    drafter: Annotated[
        tuple[HubDrafter, ...],
        typer.Option(
            help="Drafter of a hub to measure; may be given twice. Default: all there are.", show_default=False
        ),
    ] = ()
    prompts: Annotated[
        Path | None, typer.Option(help="File with one prompt per line; without it, those shipped.", show_default=False)
    ] = None
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Cut or lengthen every prompt to so many tokens.")] = 64
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every answer.")] = 128
    repeats: Annotated[int, typer.Option(min=1, help="How often all prompts are answered in every way.")] = 1
    draft_depth: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens in a row.")] = None
    draft_nodes: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens per round.")] = None
    draft_branching: Annotated[int | None, typer.Option(min=1, help="Most alternatives at one place.")] = None
    draft_wait: Annotated[
        float | None,
        typer.Option(min=0, help="Wait so long for every draft, and verify all of it; without it, as far as it pays."),
    ] = None
    device: Annotated[str, typer.Option(help="cpu, cuda or jetson: where the model runs.")] = "cpu"
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_THREADS, help="Threads of every engine; default: all cores.", show_default=False),
    ] = None
    hub_threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_THREADS, help="Threads of the hub's engine; default: as --threads.", show_default=False
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the checkpoint the bundle was made from, for transformers and llama.cpp. Default: "
            "the cached one of that name.",
            show_default=False,
        ),
    ] = None
    tune: Annotated[
        bool,
        typer.Option(help="Also measure spinning thread pools, and a hub with one thread.", show_default=False),
    ] = False
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.", show_default=False)] = None

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
