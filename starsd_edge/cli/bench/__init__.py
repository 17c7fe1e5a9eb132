"""`starsd-edge bench`: measure. Every figure that is told of this program comes from here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from starsd_edge.cli.bench.options import (
    BenchDecodeOptions,
    BenchDraftsOptions,
    BenchHubStepOptions,
    BenchRequestsOptions,
    BenchStarOptions,
    BenchTraceOptions,
    BenchVerifyOptions,
)
from starsd_edge.cli.commands import add_command
from starsd_edge.cli.near_misses import CommandGroup
from starsd_edge.errors import StarsdError, UsageError

if TYPE_CHECKING:
    from starsd_edge.bench.figures import BenchReport
    from starsd_edge.cli.bench.verify import VerifyOutcome


Outcome = TypeVar("Outcome", covariant=True)


class _Bench(Protocol[Outcome]):
    def run(self) -> Outcome:
        """Measure."""


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(cls=CommandGroup, help="Measure speed on this machine.", no_args_is_help=True)
    add_command(group, "decode", bench_decode, BenchDecodeOptions)
    add_command(group, "drafts", bench_drafts, BenchDraftsOptions)
    add_command(group, "hub-step", bench_hub_step, BenchHubStepOptions)
    add_command(group, "verify", bench_verify, BenchVerifyOptions)
    add_command(group, "trace", bench_trace, BenchTraceOptions)
    add_command(group, "star", bench_star, BenchStarOptions)
    add_command(group, "requests", bench_requests, BenchRequestsOptions)
    app.add_typer(group, name="bench")


def _run(
    bench: Callable[[Any, Callable[[str], None]], _Bench[Outcome]], options: object, json: Path | None = None
) -> Outcome:
    """Measure, once it is known that the report can be written to `json`."""
    from starsd_edge.bench.figures import check_report_path
    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.cli.progress import steps
    from starsd_edge.running import listed

    if json is not None:
        check_report_path(json)
    named = filter(None, (getattr(options, name, None) for name in ("bundle", "draft")))
    with listed("bench", bundles_at(*named)), steps("bench") as progress:
        return bench(options, progress).run()


def _write(json: Path | None, report: BenchReport) -> None:
    from starsd_edge.bench.figures import write_report

    if json is not None:
        write_report(json, report)


def bench_decode(options: BenchDecodeOptions) -> None:
    """Measure decoding: plain, with the target's own n-grams, through a hub, and by other libraries where installed.

    Every way answers the same prompts greedily in one run and by turns; end-of-sequence tokens do not end an answer.
    """
    from starsd_edge.cli.bench.decode import DecodeBench, show

    outcome = _run(DecodeBench, options, options.json)
    show(outcome)
    _write(options.json, outcome.report)
    if not outcome.exact:
        raise StarsdError("ways of decoding that must give the same tokens did not: this is a fault, please report it")


def bench_drafts(options: BenchDraftsOptions) -> None:
    """Measure how well a drafter predicts a target: tokens per round and survival by level, without the clock.

    The target decodes held-out prompts once; the drafter is then asked under every token. Texts that loop are reported
    apart, because they are easy.
    """
    from starsd_edge.cli.bench.drafts import DraftsBench, show

    report, rows = _run(DraftsBench, options, options.json)
    show(rows)
    _write(options.json, report)


def bench_hub_step(options: BenchHubStepOptions) -> None:
    """Measure how long a hub is busy with a request of each of so many targets at once, and its memory per row."""
    from starsd_edge.cli.bench.hub_step import HubStepBench, show

    report, times, memory = _run(HubStepBench, options, options.json)
    show(report, times, memory)
    _write(options.json, report)


def bench_verify(options: BenchVerifyOptions) -> None:
    """Measure what a verify pass over more and more rows takes on this device, and keep it for run-target and plan."""
    import sys

    from starsd_edge.cli.bench.verify import VerifyBench, show

    outcome = _run(VerifyBench, options, options.json)
    show(outcome)
    sys.stdout.flush()
    try:
        _write(options.json, outcome.report)
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


def bench_trace(options: BenchTraceOptions) -> None:
    """Record texts of a target with its features, for `bench star` to replay.

    The texts answer prompts that no shipped head was trained on, greedily; those that loop are passed over.
    """
    from starsd_edge.bench.trace import default_trace, write_traces
    from starsd_edge.cli.bench.trace import TraceRecorder, check_output

    path = options.output or default_trace(options.bundle)
    check_output(path)
    traces = _run(TraceRecorder, options)
    write_traces(path, traces)
    tokens = sum(len(text.answer) for text in traces.texts)
    typer.echo(f"{path}: {len(traces.texts)} texts with {tokens} tokens of answers")


def bench_star(options: BenchStarOptions) -> None:
    """Measure a star of many targets around a real hub, on modelled devices and links (the timing backend).

    Targets replay texts of `bench trace` and take the time of a modelled device; hub, draft head, wire and decode loop
    are real. The published design, plain decoding and a drafter beside each target run beside it.
    """
    from starsd_edge.cli.bench.star import StarBench, make_directory, write_outcome

    make_directory(options.directory)
    outcome = _run(StarBench, options)
    for line in write_outcome(outcome, options.directory):
        typer.echo(line)
    if outcome.inexact:
        raise StarsdError(f"{outcome.inexact} answers were not the recorded texts: this is a fault, please report it")


def bench_requests(options: BenchRequestsOptions) -> None:
    """Measure several requests at once on one modelled device (the timing backend), beside the same by turns.

    The device replays texts of `bench trace`; decode loop, scheduler, link and hub are real. Also measured is the time
    to the first token without a hub, with one that is idle, busy, or gone, and where none ever was.
    """
    from starsd_edge.cli.bench.requests import RequestsBench, show

    outcome = _run(RequestsBench, options, options.json)
    show(outcome)
    _write(options.json, outcome.report)
    if outcome.inexact:
        raise StarsdError(f"{outcome.inexact} answers were not the recorded texts: this is a fault, please report it")
