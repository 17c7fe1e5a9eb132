"""How a bench shows what it does and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from starsd_edge.bench.decode_tables import WIDTH, decode_tables

if TYPE_CHECKING:
    from starsd_edge.cli.bench.decode import DecodeOutcome


@contextmanager
def progress_lines(command: str = "bench") -> Iterator[Callable[[str], None]]:
    """Show the step that runs on standard error: the present one on a terminal, a line for each elsewhere.

    Drawn only when a step begins: a spinner would take time from what is measured.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda step: console.print(f"{command}: {step}", markup=False)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda step: live.update(Text(step), refresh=True)


def show(outcome: DecodeOutcome) -> None:
    """Print the tables, whether the answers agree, and what was measured how."""
    console = Console(file=sys.stdout, width=WIDTH, highlight=False)
    for table in decode_tables(outcome.report, outcome.titles, outcome.committed):
        console.print(table)
    for line in [*_agreement(outcome), *_conditions(outcome), *outcome.notes]:
        console.print(line, markup=False)


def _agreement(outcome: DecodeOutcome) -> Iterator[str]:
    ways = ", ".join(outcome.titles[name] for name in outcome.ours)
    if outcome.exact:
        yield f"exactness: the same token ids in each of {outcome.answers} answers by {ways}"
    else:
        first = outcome.inexact[0]
        yield (
            f"exactness: NOT the same token ids: {len(outcome.inexact)} answers differ from plain ones, the first by "
            f"{outcome.titles[first.mode]}, prompt {first.prompt + 1}, token {first.position + 1}"
        )
    if outcome.disagreements is not None:
        yield f"transformers: {_disagreements(outcome)}"


def _disagreements(outcome: DecodeOutcome) -> str:
    found = outcome.disagreements or ()
    if not found:
        return f"the same token ids in each of {outcome.answers} answers"
    where = ", ".join(
        f"prompt {each.at.prompt + 1} token {each.at.position + 1} (margin {each.margin:.1e})" for each in found
    )
    return f"{len(found)} of {outcome.answers} answers leave ours, first at {where}"


def _conditions(outcome: DecodeOutcome) -> Iterator[str]:
    machine, settings = outcome.report.machine, outcome.report.settings
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {settings['threads']} threads for each engine, load average "
        f"{machine['load_average_before']} before"
    )
    yield (
        f"{settings['bundle']}: {settings['weights']} weights, {settings['kv_dtype']} KV; "
        f"{settings['number_of_prompts']} prompts of {settings['prompt_tokens']} tokens, {settings['new_tokens']} new "
        f"tokens, {settings['repeats']} times"
    )
    yield f"prompts: {settings['prompt_treatment']}"
    yield (
        "hub_added: round minus draft minus verify, the first round of each answer left out; round_ms: from taking the "
        "draft to asking for the next and committing"
    )
