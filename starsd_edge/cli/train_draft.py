"""`starsd-edge train-draft`: an EAGLE head for a model, trained on this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.options import MAX_THREADS
from starsd_edge.cli.shared_options import model_names

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from starsd_export.training.loop import Evaluation
    from starsd_export.training.pipeline import HeadPlan, Watcher


class Precision(str, Enum):
    """What is multiplied in; weights and sums stay in float32."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class TrainDraftOptions:
    """The options of the command."""

    model: Annotated[
        str,
        typer.Argument(
            help="The target's model, as for `export`: a name, hf:ORG/NAME, a GGUF file or a safetensors directory.",
            autocompletion=model_names,
        ),
    ]
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the head.")]
    work: Annotated[
        Path | None,
        typer.Option(
            help="Directory of texts, features and checkpoints; a run that was interrupted goes on with what is there. "
            "Default: the output's name with .work."
        ),
    ] = None
    tokens: Annotated[int, typer.Option(min=1000, help="Tokens of text that the model writes for itself.")] = 500_000
    data: Annotated[
        tuple[Path, ...], typer.Option(help="Plain text to train on instead; may be given several times.")
    ] = ()
    messages: Annotated[
        Path | None,
        typer.Option(
            help="Messages like those that the model will get, one per line: it answers them where it writes the "
            "texts. Default: it asks itself."
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            help="Go on from this head: a directory as for `export --draft-head`, or shipped. Default: a new head."
        ),
    ] = None
    epochs: Annotated[int, typer.Option(min=1, help="Number of times that every text is seen.")] = 10
    unroll: Annotated[int, typer.Option(min=1, max=8, help="Draft tokens in a row that the head is trained for.")] = 4
    draft_vocabulary: Annotated[
        int, typer.Option(min=16, help="Number of different tokens that the head can draft.")
    ] = 8192
    learning_rate: Annotated[float, typer.Option(min=1e-6, max=1.0, help="Highest learning rate.")] = 2e-3
    batch_tokens: Annotated[int, typer.Option(min=64, help="Tokens of one update.")] = 4096
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts, the first weights and the order.")] = 0
    precision: Annotated[
        Precision, typer.Option(help="auto takes bfloat16 where the processor multiplies it by itself.")
    ] = Precision.AUTO
    threads: Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads. Default: all cores.")] = None
    export_public: Annotated[
        Path | None, typer.Option(help="Also write the head in the public EAGLE layout into this directory.")
    ] = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "train-draft", train_draft, TrainDraftOptions)


def train_draft(options: TrainDraftOptions) -> None:
    """Train an EAGLE head that drafts for a model.

    Without --data the model writes the texts itself. `export --draft-head` makes a draft bundle of what is written.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # the loader's own bars, between our stages
    import torch

    from starsd_edge.bundles.catalogue import resolve_model
    from starsd_edge.running import listed
    from starsd_export.checkpoint import open_checkpoint
    from starsd_export.training.pipeline import train_head

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(resolve_model(options.model))
    output = options.output
    with training_shown() as watcher, listed("train-draft", model=options.model):
        head = train_head(
            checkpoint, options.work or output.with_name(f"{output.name}.work"), output, _plan(options), watcher
        )
    if options.export_public is not None:
        from starsd_export.draft_heads.bundle import write_public

        write_public(checkpoint, head, options.export_public)
    trained = head.record.trained
    typer.echo(output)
    typer.echo(
        f"{trained['tokens']:,} tokens, {trained['updates']:,} updates; on texts that were held out: "
        f"tokens_per_round {trained['held_out_tokens_per_round']:.2f} with chains of {trained['steps']}"
    )


def _plan(options: TrainDraftOptions) -> HeadPlan:
    import torch

    from starsd_export.training.learning import LossWeights
    from starsd_export.training.loop import TrainingPlan
    from starsd_export.training.pipeline import HeadPlan

    fast = torch.cpu._is_avx512_bf16_supported()
    bfloat16 = options.precision is Precision.BFLOAT16 or (options.precision is Precision.AUTO and fast)
    training = TrainingPlan(
        seed=options.seed,
        epochs=options.epochs,
        batch_tokens=options.batch_tokens,
        learning_rate=options.learning_rate,
        bfloat16=bfloat16,
        loss=LossWeights(steps=options.unroll),
    )
    return HeadPlan(
        options.tokens,
        options.data,
        options.messages,
        options.start,
        options.draft_vocabulary,
        bfloat16,
        training=training,
    )


_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def training_shown() -> Iterator[Watcher]:
    """Who watches a training."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def stage(self, name: str, total: int) -> None:
        self._task = self._progress.add_task(name, total=total)

    def done(self, count: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=count)

    def report(self, report: Evaluation) -> None:
        self._progress.console.print(_line(report), highlight=False)


class _Lines:
    def __init__(self) -> None:
        self._name = ""
        self._total = 0
        self._said_at = -math.inf

    def stage(self, name: str, total: int) -> None:
        self._name, self._total, self._said_at = name, total, -math.inf

    def done(self, count: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= _SECONDS_BETWEEN_LINES or count >= self._total:
            self._said_at = now
            _say(f"{self._name}: {count:,} of {self._total:,}")

    def report(self, report: Evaluation) -> None:
        _say(_line(report))


def _line(report: Evaluation) -> str:
    levels = " ".join(f"{share:.2f}" for share in report.survival)
    return (
        f"update {report.update}: loss {report.loss:.3f}, held out: tokens_per_round {report.tokens_per_round:.2f}, "
        f"survival {levels}"
    )


def _say(line: Any) -> None:
    typer.echo(f"train-draft: {line}", err=True)
