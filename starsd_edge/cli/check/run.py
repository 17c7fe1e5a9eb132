"""What `check` does, in its order: the files, then the graph, then the engines that are built from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from starsd_edge.bundles.bundle import TARGET_KIND, Bundle, bundle_kind, read_manifest
from starsd_edge.bundles.cache import engines_dir, known_cache
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.bundles.engine_manifest import read_engine_manifest, rebuild_command, require_fit
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.cli.check.graph import (
    GraphRun,
    check_against_checkpoint,
    check_against_recording,
    check_head_bundle,
    run_graph,
)
from starsd_edge.cli.output import finding_text, findings_table, output_console
from starsd_edge.errors import BundleError, StarsdError, UsageError
from starsd_edge.heads.draft_bundle import DRAFT_KIND
from starsd_edge.parity.compare import HALF_BOUND, compare_engine, observed, recorded
from starsd_edge.parity.files import (
    check_each_file,
    check_engine,
    check_fit,
    check_manifest,
    check_tokenizer,
    find_engines,
)
from starsd_edge.parity.findings import Check, CheckReport, Part, Status, any_differs, differs, not_checked
from starsd_edge.parity.golden import GOLDEN_NAME, Golden, greedy_text, read_golden
from starsd_edge.runtime.engine import Engine

PART = "engine"
PASSES = "passes"
PROMPT = 8
"""Tokens of the prompt of the greedy text, for a graph of which nothing was recorded."""


def check_engines(
    bundle: Bundle, run: GraphRun, named: Sequence[Path], progress: Callable[[str], None]
) -> Iterator[Part]:
    """A part for each engine.

    Args:
        run: of the graph: what an engine has to give.
        named: directories of engines; all that are on this machine where none is named.

    Raises:
        UsageError: an engine was named and the bundle is for CPUs.
    """
    if bundle.manifest.graph.tensorrt is None:
        if named:
            raise UsageError(
                f"{bundle.path} has a graph for ONNX Runtime, of which there are no engines: leave --engine"
            )
        return
    directories = list(named) or find_engines(bundle, None if known_cache() is None else engines_dir())
    if not directories:
        remedy = f"build one, on the device that runs it: `starsd-edge export {bundle.path} --engine tensorrt`"
        yield Part(PART, "engines", [not_checked("engines", "there is none on this machine", remedy)])
    # Engines for several kinds of GPU may lie side by side, and on each machine one of them is enough.
    needs_fit = bool(named) or not any(_fits(directory, bundle) for directory in directories)
    for directory in directories:
        progress(f"the engine {directory.name}")
        yield Part(PART, f"engine {directory.name}", list(_check(bundle, directory, run, needs_fit)))


def _fits(directory: Path, bundle: Bundle) -> bool:
    from starsd_edge.runtime.tensorrt.opening import host_of

    try:
        engine = read_engine_manifest(directory)
        require_fit(directory, engine, host_of(engine), bundle.manifest)
    except StarsdError:
        return False
    return True


def _check(bundle: Bundle, directory: Path, run: GraphRun, needs_fit: bool) -> Iterator[Check]:
    """Args:
    needs_fit: whether an engine for another machine is a fault.
    """
    from starsd_edge.runtime.tensorrt.opening import host_of, open_at
    from starsd_edge.runtime.tensorrt.plan import require_agreement

    try:
        engine = read_engine_manifest(directory)
    except StarsdError as error:
        yield differs("manifest", str(error))
        return
    checks = check_engine(directory, engine, bundle.manifest, require_agreement)
    yield from checks
    try:
        host = host_of(engine)
    except StarsdError as error:
        yield not_checked("machine", str(error), "run this command on the device that is to run the engine")
        return
    fit = check_fit(directory, engine, host, bundle.manifest)
    yield fit if needs_fit or not any_differs([fit]) else not_checked(fit.name, fit.finding)
    if any_differs([*checks, fit]):
        yield not_checked(PASSES, "it is not opened, as it is not what it should be or is for another machine")
        return
    remedy = f"build it again with `{rebuild_command(engine)}`"
    try:
        yield from _compare(open_at(directory, engine, bundle.manifest), bundle, run, remedy)
    except StarsdError as error:
        yield differs(PASSES, str(error))


def _compare(engine: Engine, bundle: Bundle, run: GraphRun, remedy: str) -> Iterator[Check]:
    """Against what the graph gives on this machine, else against what was recorded of it."""
    vocab_size = bundle.manifest.model.chosen_ids
    if run.engine is not None:
        reference = observed(run.passes, HALF_BOUND, remedy)
        text = run.golden.facts.text if run.golden else greedy_text(run.engine, run.ids[:PROMPT], vocab_size)
    elif run.golden is not None:
        reference, text = recorded(run.golden, HALF_BOUND, remedy), run.golden.facts.text
    else:
        yield not_checked(PASSES, "the graph did not run, and nothing was recorded of it")
        return
    yield from compare_engine(engine, run.ids, reference, text, vocab_size)


Progress = Callable[[str], None]
FILES = "files"


def check_bundle(
    name: str, checkpoint: str | None, engines: Sequence[Path], threads: int | None, progress: Progress
) -> CheckReport:
    """Every check that this machine can make.

    Args:
        name: a bundle's directory, or its name in the cache.
        checkpoint: to compare with, as the user gave it; None takes the one in the cache.
        engines: their directories; all of the bundle on this machine where none is named.
        threads: of ONNX Runtime; None takes one per core.

    Raises:
        BundleError: there is no such bundle.
        UsageError: options that fit no such bundle.
    """
    path = find_bundle(name)
    try:
        parts = _parts(path, checkpoint, engines, threads, progress)
    except BundleError as error:  # of its manifest, without which nothing else can be said
        parts = iter([Part(FILES, FILES, [differs("manifest", str(error))])])
    return CheckReport(path.name, list(parts))


def _parts(
    path: Path, checkpoint: str | None, engines: Sequence[Path], threads: int | None, progress: Progress
) -> Iterator[Part]:
    if bundle_kind(path) == DRAFT_KIND:
        if checkpoint is not None or engines:
            raise UsageError(f"{path} is a draft head's bundle: --checkpoint and --engine are for those of models")
        return check_head_bundle(path, threads, progress)
    bundle = Bundle(path, read_manifest(path, Manifest, TARGET_KIND))
    return _check_target(bundle, checkpoint, engines, threads, progress)


def _check_target(
    bundle: Bundle, checkpoint: str | None, engines: Sequence[Path], threads: int | None, progress: Progress
) -> Iterator[Part]:
    files, golden = _check_files(bundle, progress)
    yield files
    whole = {*bundle.manifest.files} - {check.name for check in files.checks}
    progress("the graph, against what was recorded")
    run = run_graph(bundle, whole, golden, threads)
    yield check_against_recording(bundle, run)
    progress("the graph, against the checkpoint")
    yield check_against_checkpoint(bundle, run, checkpoint)
    yield from check_engines(bundle, run, engines, progress)


def _check_files(bundle: Bundle, progress: Progress) -> tuple[Part, Golden | None]:
    """Also what was recorded at export, if it is there and whole."""
    progress("the files")
    path, manifest = bundle.path, bundle.manifest
    checks = [check_manifest(path, manifest), *check_each_file(path, manifest.files)]
    golden = None
    if GOLDEN_NAME in manifest.files and all(check.name != GOLDEN_NAME for check in checks):
        try:
            golden = read_golden(path, manifest.model.vocab_size)
        except BundleError as error:
            checks.append(differs(GOLDEN_NAME, str(error)))
    return Part(FILES, FILES, [*checks, check_tokenizer(path, manifest, golden)]), golden


_STYLES = {Status.OK: "green", Status.DIFFERS: "bold red", Status.NOT_CHECKED: "dim"}


def show(report: CheckReport, as_json: bool) -> None:
    """Print it on standard output."""
    if as_json:
        sys.stdout.write(report.to_json().decode())
        return
    console = output_console()
    for part in report.parts:
        console.print(Text(part.title, style="bold"))
        console.print(_table(part))
    console.print(Text(report.summary, style="bold"))


def _table(part: Part) -> Table:
    table = findings_table()
    remedies = [check.remedy for check in part.checks]
    for number, check in enumerate(part.checks):
        is_last = check.remedy not in remedies[number + 1 :]  # what mends several stands once, below the last of them
        text = finding_text(check.finding, check.remedy if is_last else "")
        table.add_row(Text(f"  {_word(check)}", style=_STYLES[check.status]), Text(check.name), text)
    return table


def _word(check: Check) -> str:
    return "not checked" if check.status is Status.NOT_CHECKED else check.status.value
