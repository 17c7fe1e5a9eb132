"""The engines of a bundle: their manifests and plans anywhere, their passes where this machine can run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    EngineHost,
    EngineManifest,
    platform_name,
    read_engine_manifest,
    rebuild_command,
)
from starsd_edge.cli.check_graph import GraphRun
from starsd_edge.errors import EngineError, StarsdError, UsageError
from starsd_edge.parity.engines import check_engine, check_fit, find_engines
from starsd_edge.parity.findings import Check, Part, any_differs, differs, not_checked
from starsd_edge.parity.graph import HALF_BOUND, compare_engine, observed, recorded
from starsd_edge.parity.text import greedy_text
from starsd_edge.runtime.cuda_driver import cuda_devices
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
    from starsd_export.engines.engine_export import engines_dir

    if bundle.manifest.graph.tensorrt is None:
        if named:
            raise UsageError(
                f"{bundle.path} has a graph for ONNX Runtime, of which there are no engines: leave --engine"
            )
        return
    directories = list(named) or find_engines(bundle, engines_dir())
    if not directories:
        remedy = f"build one, on the device that runs it: `starsd-edge export {bundle.path} --engine tensorrt`"
        yield Part(PART, "engines", [not_checked("engines", "there is none on this machine", remedy)])
    for directory in directories:
        progress(f"the engine {directory.name}")
        yield Part(PART, f"engine {directory.name}", list(_check(bundle, directory, run)))


def _check(bundle: Bundle, directory: Path, run: GraphRun) -> Iterator[Check]:
    try:
        engine = read_engine_manifest(directory)
    except StarsdError as error:
        yield differs("manifest", str(error))
        return
    checks = check_engine(directory, engine, bundle.manifest)
    yield from checks
    try:
        host = engine_host(engine)
    except StarsdError as error:
        yield not_checked("machine", str(error), "run this command on the device that is to run the engine")
        return
    fit = check_fit(directory, engine, host, bundle.manifest)
    yield fit
    if any_differs([*checks, fit]):
        yield not_checked(PASSES, "it is not opened, as it is not what it should be or is for another machine")
        return
    remedy = f"build it again with `{rebuild_command(engine)}`"
    try:
        yield from _compare(open_engine(bundle, directory, engine), bundle, run, remedy)
    except StarsdError as error:
        yield differs(PASSES, str(error))


def engine_host(engine: EngineManifest) -> EngineHost:
    """What this machine has of what an engine needs.

    Raises:
        EngineError: no driver or GPU.
        UsageError: no such library.
    """
    from starsd_export.engines.libraries import ENGINES, open_library

    gpu = cuda_devices()[0]
    name = next(name for name, module in ENGINES.items() if module == engine.library)
    return EngineHost(engine.library, open_library(name).version, gpu.compute_capability, platform_name())


def open_engine(bundle: Bundle, directory: Path, engine: EngineManifest) -> Engine:
    """Open an engine that was found to fit."""
    raise EngineError("NOT YET")


def _compare(engine: Engine, bundle: Bundle, run: GraphRun, remedy: str) -> Iterator[Check]:
    """Against what the graph gives on this machine, else against what was recorded of it."""
    model = bundle.manifest.model
    vocab_size = min(model.tokenizer_size, model.vocab_size)
    if run.engine is not None:
        yardstick = observed(run.passes, HALF_BOUND, remedy)
        text = run.golden.text if run.golden else greedy_text(run.engine, run.ids[:PROMPT], vocab_size)
    elif run.golden is not None:
        yardstick, text = recorded(run.golden, HALF_BOUND, remedy), run.golden.text
    else:
        yield not_checked(PASSES, "the graph did not run, and nothing was recorded of it")
        return
    yield from compare_engine(engine, run.ids, yardstick, text, vocab_size)
