"""`starsd-edge bench`: measure. Every figure that is told of this program comes from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from starsd_edge.cli.bench.options import (
    BenchDecodeOptions,
    BenchDraftsOptions,
    BenchHubStepOptions,
    BenchTraceOptions,
    BenchVerifyOptions,
)
from starsd_edge.cli.bench.star_options import BenchStarOptions
from starsd_edge.cli.commands import add_command
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.cli.bench.verify import VerifyOutcome


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
    group.callback()(_group)
    add_command(group, "decode", decode, BenchDecodeOptions)
    add_command(group, "drafts", drafts, BenchDraftsOptions)
    add_command(group, "hub-step", hub_step, BenchHubStepOptions)
    add_command(group, "verify", verify, BenchVerifyOptions)
    add_command(group, "trace", trace, BenchTraceOptions)
    add_command(group, "star", star, BenchStarOptions)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Without it, typer would make a group of one command that command itself."""


def decode(options: BenchDecodeOptions) -> None:
    """Measure decoding: plain, with the target's own n-grams, through a hub, and by other libraries where installed.

    Every way answers the same prompts greedily in one run and by turns; end-of-sequence tokens do not end an answer.
    """
    from starsd_edge.bench.figures import check_report_path, write_report
    from starsd_edge.cli.bench.decode import DecodeBench
    from starsd_edge.cli.bench.output import progress_lines, show

    if options.json is not None:
        check_report_path(options.json)
    with progress_lines() as progress:
        outcome = DecodeBench(options, progress).run()
    show(outcome)
    if options.json is not None:
        write_report(options.json, outcome.report)
    if not outcome.exact:
        raise StarsdError("ways of decoding that must give the same tokens did not: this is a fault, please report it")


def drafts(options: BenchDraftsOptions) -> None:
    """Measure how well a drafter foresees a target: tokens per round and survival by level, without the clock.

    The target decodes held-out prompts once; the drafter is then asked under every token. Texts that loop are reported
    apart, because they are easy.
    """
    import sys

    from rich.console import Console

    from starsd_edge.bench.figures import check_report_path, write_report
    from starsd_edge.cli.bench.drafts import DraftsBench, show_rows
    from starsd_edge.cli.bench.output import progress_lines

    if options.json is not None:
        check_report_path(options.json)
    with progress_lines() as progress:
        report, rows = DraftsBench(options, progress).run()
    show_rows(rows, Console(file=sys.stdout, width=80, highlight=False))
    if options.json is not None:
        write_report(options.json, report)


def hub_step(options: BenchHubStepOptions) -> None:
    """Measure how long a hub is busy with a request of each of so many targets at once, and its memory per row."""
    import sys

    from rich.console import Console

    from starsd_edge.bench.figures import check_report_path, write_report
    from starsd_edge.cli.bench.hub_step import HubStepBench, show_steps
    from starsd_edge.cli.bench.output import progress_lines

    if options.json is not None:
        check_report_path(options.json)
    with progress_lines() as progress:
        report, times, memory = HubStepBench(options, progress).run()
    show_steps(report, times, memory, Console(file=sys.stdout, width=80, highlight=False))
    if options.json is not None:
        write_report(options.json, report)


def verify(options: BenchVerifyOptions) -> None:
    """Measure what a verify pass over more and more rows takes on this device, and keep it for run-target and plan."""
    import sys

    from rich.console import Console

    from starsd_edge.bench.figures import check_report_path, write_report
    from starsd_edge.cli.bench.output import progress_lines
    from starsd_edge.cli.bench.verify import WIDTH, VerifyBench, show_passes

    if options.json is not None:
        check_report_path(options.json)
    with progress_lines() as progress:
        outcome = VerifyBench(options, progress).run()
    show_passes(outcome, Console(file=sys.stdout, width=WIDTH, highlight=False))
    sys.stdout.flush()
    try:
        if options.json is not None:
            write_report(options.json, outcome.report)
    finally:  # one that cannot be written is no reason to lose the other
        typer.echo(_keep(outcome) if options.keep else "not kept")


def _keep(outcome: VerifyOutcome) -> str:
    """Keep the times where a place for them is known, and say whether they are.

    Raises:
        OSError: they cannot be written there.
    """
    from starsd_edge.doctor.curve_store import curve_store

    try:
        curve_store().save(outcome.key, outcome.stored)
    except UsageError as error:  # there is no place for them, and nothing needs one
        return f"not kept: {error}"
    return "kept for run-target and plan"


def trace(options: BenchTraceOptions) -> None:
    """Record texts of a target with its features, for `bench star` to replay.

    The texts answer prompts that no shipped head was trained on, greedily; those that loop are passed over.
    """
    from starsd_edge.bench.trace import default_trace, write_traces
    from starsd_edge.cli.bench.output import progress_lines
    from starsd_edge.cli.bench.trace import TraceRecorder, check_output

    path = options.output or default_trace(options.bundle)
    check_output(path)
    with progress_lines() as progress:
        traces = TraceRecorder(options, progress).run()
    write_traces(path, traces)
    tokens = sum(len(text.answer) for text in traces.texts)
    typer.echo(f"{path}: {len(traces.texts)} texts with {tokens} tokens of answers")


def star(options: BenchStarOptions) -> None:
    """Measure a star of many targets around a real hub, on modelled devices and links (the timing backend).

    Targets replay texts of `bench trace` and take the time of a modelled device; hub, draft head, wire and decode loop
    are real. The published design, plain decoding and a drafter beside each target run beside it.
    """
    from starsd_edge.cli.bench.output import progress_lines
    from starsd_edge.cli.bench.star import StarBench, make_directory, write_outcome

    make_directory(options.directory)
    with progress_lines() as progress:
        outcome = StarBench(options, progress).run()
    for line in write_outcome(outcome, options.directory):
        typer.echo(line)
    if outcome.inexact:
        raise StarsdError(f"{outcome.inexact} answers were not the recorded texts: this is a fault, please report it")
