"""`starsd-edge bench`: measure. Every figure that is told of this program comes from here."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from starsd_edge.errors import StarsdError, UsageError


class HubDrafter(str, Enum):
    """Drafters that a bench can start a hub with."""

    CAUSAL_LM = "causal-lm"
    NGRAM = "ngram"


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
    group.callback()(_group)
    group.command("decode")(decode)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Without it, typer would make a group of one command that command itself."""


def decode(
    bundle: Annotated[str, typer.Argument(help="Bundle of the target model: a directory, or a name in the cache.")],
    draft: Annotated[
        str | None, typer.Option(help="Bundle of the hub's draft model (drafter causal-lm).", show_default=False)
    ] = None,
    drafter: Annotated[
        list[HubDrafter] | None,
        typer.Option(
            help="Drafter of a hub to measure; may be given twice. Default: all there are.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File with one prompt per line; without it, those shipped.", show_default=False)
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Cut or lengthen every prompt to so many tokens.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every answer.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="How often all prompts are answered in every way.")] = 1,
    draft_depth: Annotated[int | None, typer.Option(min=1, help="Most guessed tokens in a row.")] = None,
    draft_wait: Annotated[
        float | None,
        typer.Option(min=0, help="Most seconds to wait for a draft; without it, as long as waiting pays."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu; cuda and jetson come with a later version.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of every engine; default: all cores.", show_default=False)
    ] = None,
    hub_threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the hub's engine; default: as --threads.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the checkpoint the bundle was made from, for transformers and llama.cpp. Default: "
            "the cached one of that name.",
            show_default=False,
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Also measure spinning thread pools, and a hub with one thread.")
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.", show_default=False)
    ] = None,
) -> None:
    """Measure decoding: plain, with the target's own n-grams, through a hub, and by other libraries where installed.

    Every way answers the same prompts greedily in one run and by turns; end-of-sequence tokens do not end an answer.
    """
    from starsd_edge.bench.figures import check_report_path, write_report
    from starsd_edge.cli.bench_decode import DecodeBench, Plan
    from starsd_edge.cli.bench_output import progress_lines, show

    if json_path is not None:
        check_report_path(json_path)
    plan = Plan(
        bundle=bundle,
        draft=draft,
        drafters=_drafters(drafter, draft),
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        draft_depth=draft_depth,
        draft_wait_s=draft_wait,
        device=device,
        threads=threads,
        hub_threads=hub_threads,
        checkpoint=checkpoint,
        tune=tune,
    )
    with progress_lines() as progress:
        outcome = DecodeBench(plan, progress).run()
    show(outcome)
    if json_path is not None:
        write_report(json_path, outcome.report)
    if not outcome.exact:
        raise StarsdError("ways of decoding that must give the same tokens did not: this is a fault, please report it")


def _drafters(chosen: list[HubDrafter] | None, draft: str | None) -> tuple[str, ...]:
    """Kinds of drafter, the one whose figures have the plain names first."""
    if chosen is None:
        return (HubDrafter.NGRAM.value,) if draft is None else (HubDrafter.CAUSAL_LM.value, HubDrafter.NGRAM.value)
    if HubDrafter.CAUSAL_LM in chosen and draft is None:
        raise UsageError("--drafter causal-lm needs a draft model: --draft BUNDLE")
    if HubDrafter.CAUSAL_LM not in chosen and draft is not None:
        raise UsageError("--draft is for --drafter causal-lm: leave one of them out")
    return tuple(dict.fromkeys(kind.value for kind in chosen))
