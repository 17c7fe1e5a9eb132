"""The engines of a bundle: their manifests and plans anywhere, their passes where this machine can run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import engines_dir, known_cache
from starsd_edge.bundles.engine_manifest import read_engine_manifest, rebuild_command, require_fit
from starsd_edge.cli.check.graph import GraphRun
from starsd_edge.errors import StarsdError, UsageError
from starsd_edge.parity.compare import HALF_BOUND, compare_engine, observed, recorded
from starsd_edge.parity.files import check_engine, check_fit, find_engines
from starsd_edge.parity.findings import Check, Part, any_differs, differs, not_checked
from starsd_edge.parity.golden import greedy_text
from starsd_edge.runtime.engine import Engine

PART = "engine"
PASSES = "passes"
PROMPT = 8
"""Tokens that a graph without a recording is asked to go on from."""


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
        yardstick = observed(run.passes, HALF_BOUND, remedy)
        text = run.golden.facts.text if run.golden else greedy_text(run.engine, run.ids[:PROMPT], vocab_size)
    elif run.golden is not None:
        yardstick, text = recorded(run.golden, HALF_BOUND, remedy), run.golden.facts.text
    else:
        yield not_checked(PASSES, "the graph did not run, and nothing was recorded of it")
        return
    yield from compare_engine(engine, run.ids, yardstick, text, vocab_size)
