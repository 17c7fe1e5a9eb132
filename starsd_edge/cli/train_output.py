"""What a training shows: a bar for each stage on a terminal, a line now and then elsewhere (standard error)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from starsd_export.training.loop import Report
    from starsd_export.training.pipeline import Watcher

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

    def report(self, report: Report) -> None:
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

    def report(self, report: Report) -> None:
        _say(_line(report))


def _line(report: Report) -> str:
    levels = " ".join(f"{share:.2f}" for share in report.survival)
    return (
        f"update {report.update}: loss {report.loss:.3f}, held out: tokens_per_round {report.tokens_per_round:.2f}, "
        f"survival {levels}"
    )


def _say(line: Any) -> None:
    typer.echo(f"train-draft: {line}", err=True)
