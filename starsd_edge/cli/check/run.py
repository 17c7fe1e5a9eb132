"""What `check` does, in its order: the files, then the graph, then the engines that are built from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from starsd_edge.bundles.bundle import TARGET_KIND, Bundle, bundle_kind, read_manifest
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.cli.check.engines import check_engines
from starsd_edge.cli.check.graph import check_against_checkpoint, check_against_recording, check_head_bundle, run_graph
from starsd_edge.cli.check.options import CheckOptions
from starsd_edge.cli.findings_output import finding_text, findings_table, output_console
from starsd_edge.errors import BundleError
from starsd_edge.heads.draft_bundle import DRAFT_KIND
from starsd_edge.parity.files import check_each_file, check_manifest, check_tokenizer
from starsd_edge.parity.findings import Check, CheckReport, Part, Status, differs
from starsd_edge.parity.golden import GOLDEN_NAME, Golden, read_golden

Progress = Callable[[str], None]
FILES = "files"


def check_bundle(options: CheckOptions, progress: Progress) -> CheckReport:
    """Every check that this machine can make.

    Raises:
        BundleError: there is no such bundle.
        UsageError: options that fit no such bundle.
    """
    path = find_bundle(options.bundle)
    try:
        parts = _parts(path, options, progress)
    except BundleError as error:  # of its manifest, without which nothing else can be said
        parts = iter([Part(FILES, FILES, [differs("manifest", str(error))])])
    return CheckReport(path.name, list(parts))


def _parts(path: Path, options: CheckOptions, progress: Progress) -> Iterator[Part]:
    if bundle_kind(path) == DRAFT_KIND:
        return check_head_bundle(path, options, progress)
    bundle = Bundle(path, read_manifest(path, Manifest, TARGET_KIND))
    return _check_target(bundle, options, progress)


def _check_target(bundle: Bundle, options: CheckOptions, progress: Progress) -> Iterator[Part]:
    files, golden = _check_files(bundle, progress)
    yield files
    whole = {*bundle.manifest.files} - {check.name for check in files.checks}
    progress("the graph, against what was recorded")
    run = run_graph(bundle, whole, golden, options.threads)
    yield check_against_recording(bundle, run)
    progress("the graph, against the checkpoint")
    yield check_against_checkpoint(bundle, run, options.checkpoint)
    yield from check_engines(bundle, run, options.engine, progress)


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
