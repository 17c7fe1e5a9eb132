"""One build: a graph file in, a serialised engine out, through the part of the interface that TensorRT 10.3 to 11 and
TensorRT-RTX share.

What is kept in a variable here is kept on purpose: the parser uses logger and network without owning them, and a
network that Python has collected takes the process with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starsd_edge.bundles.engine_manifest import EngineTensor
from starsd_edge.device.tensorrt_library import ENGINES, import_library, make_log, tensor_dtype
from starsd_edge.errors import StarsdError
from starsd_export.engines.profiles import Shapes

__all__ = ["COMPUTE_CAPABILITIES", "ENGINES", "Library", "open_library"]

COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""Kinds of GPU that TensorRT-RTX builds for without one."""


@dataclass(frozen=True)
class Library:
    """One of them, imported.

    Attributes:
        engine: its name for `--engine`.
        module: the Python module.
        version: all four parts.
    """

    engine: str
    module: Any
    version: str

    @property
    def is_rtx(self) -> bool:
        """Whether it builds ahead of time, without a GPU."""
        return self.engine == "tensorrt-rtx"

    def __str__(self) -> str:
        return f"{'TensorRT-RTX' if self.is_rtx else 'TensorRT'} {self.version}"


def open_library(engine: str, load: Callable[[str], Any] = importlib.import_module) -> Library:
    """Import a library.

    Args:
        engine: a name of `ENGINES`.
        load: imports a module by its name.

    Raises:
        UsageError: not installed, incomplete, or of a version that this program was not made for.
    """
    module, version = import_library(ENGINES[engine], f"--engine {engine}", "Builder", load)
    return Library(engine, module, version)


_KEPT_MESSAGES = 40
_REASONS = 6
_ASKS_FOR_A_GPU = "generateForCurrent"
_TOLD_DEPTH = 2
_PARTS = 20

Report = Callable[[str, int, int], None]
"""Told the phase of a build, how many of its steps are done, and how many there are."""


class BuildError(StarsdError):
    """The library does not build an engine from this graph."""


class BuildCancelledError(StarsdError):
    """The build was asked to stop."""


@dataclass(frozen=True)
class BuildOrder:
    """What to build.

    Attributes:
        graph: the ONNX file.
        shapes: of the inputs, one entry for each profile.
        compute_capabilities: kinds of GPU that one plan shall serve, like "sm89"; none takes this machine's GPU.
        timing_cache: what an earlier build measured, empty for none; None where the library keeps no such thing.
    """

    graph: Path
    shapes: Sequence[Shapes]
    compute_capabilities: Sequence[str]
    timing_cache: bytes | None = None


@dataclass(frozen=True)
class BuiltPlan:
    """What came of it.

    Attributes:
        plan: the serialised engine.
        tensors: its inputs and outputs.
        timing_cache: what the build measured, where the library keeps it.
    """

    plan: bytes
    tensors: list[EngineTensor]
    timing_cache: bytes | None


def build_plan(
    library: Library, order: BuildOrder, report: Report = lambda phase, done, of: None, stop: Callable[[], bool] = bool
) -> BuiltPlan:
    """Build an engine in this process.

    Args:
        report: see `Report`.
        stop: asked after every step whether to give up.

    Raises:
        BuildError: what the library said.
        BuildCancelledError: `stop` said so.
    """
    trt = library.module
    log = make_log(trt, _KEPT_MESSAGES)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(order.graph)):
        raise BuildError(f"{library} does not take this graph: {_reasons(_parser_errors(parser) or log.errors)}")
    config = builder.create_builder_config()
    _choose_gpus(library, config, order.compute_capabilities)
    _add_profiles(library, builder, network, config, order.shapes, log)
    if order.timing_cache is not None:
        _use_timings(config, order.timing_cache)
    monitor = _make_monitor(trt, report, stop)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        if monitor.stopped:
            raise BuildCancelledError("the build was stopped")
        raise BuildError(f"{library} does not build this graph: {_why_not(log.errors)}")
    measured = _timings(config) if order.timing_cache is not None else None
    return BuiltPlan(bytes(plan), _tensors(network), measured)


def _use_timings(config: Any, kept: bytes) -> None:
    """Begin with what an earlier build measured, or where the library refuses that (another GPU, driver or build of the
    library, a damaged file), with nothing.
    """
    for content in dict.fromkeys((kept, b"")):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return


def _timings(config: Any) -> bytes | None:
    """What was measured, None where the library does not tell: it saves the next build time, and no more."""
    try:
        cache = config.get_timing_cache()
        content = cache.serialize() if cache is not None else None
        return None if content is None else bytes(content)
    except Exception:  # whatever the library raises: the engine is built
        return None


def _choose_gpus(library: Library, config: Any, wanted: Sequence[str]) -> None:
    if not wanted:
        return
    config.num_compute_capabilities = len(wanted)
    for index, name in enumerate(wanted):
        kind = getattr(library.module.ComputeCapability, name.upper(), None)
        if kind is None:
            raise BuildError(f"{library} does not build for {name}: another version may")
        if not config.set_compute_capability(kind, index):
            raise BuildError(f"{library} refuses to build for {name}")


def _add_profiles(
    library: Library, builder: Any, network: Any, config: Any, profiles: Sequence[Shapes], log: Any
) -> None:
    dynamic = [tensor.name for tensor in _inputs(network) if -1 in tuple(tensor.shape)]
    for number, shapes in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name in dynamic:
            if name in shapes:
                profile.set_shape(name, *(tuple(shape) for shape in shapes[name]))
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"{library} refuses profile {number}: {_reasons(log.errors)}")


def _make_monitor(trt: Any, report: Report, stop: Callable[[], bool]) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Tells of the outer levels of phases, in twentieths; the inner ones number hundreds."""

        def __init__(self) -> None:
            super().__init__()
            self.stopped = False
            self._depths: dict[str, int] = {}
            self._steps: dict[str, int] = {}  # of the phases that are told

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self._depths[name] = 0 if parent is None else self._depths.get(parent, 0) + 1
            if self._depths[name] <= _TOLD_DEPTH:
                self._steps[name] = steps
                report(name, 0, steps)

        def phase_finish(self, name: str) -> None:
            self._depths.pop(name, None)
            self._steps.pop(name, None)

        def step_complete(self, name: str, step: int) -> bool:
            of, done = self._steps.get(name, 0), step + 1
            if of and done * _PARTS // of > step * _PARTS // of:
                report(name, done, of)
            self.stopped = self.stopped or stop()
            return not self.stopped

    return Monitor()


def _inputs(network: Any) -> list[Any]:
    return [network.get_input(index) for index in range(network.num_inputs)]


def _tensors(network: Any) -> list[EngineTensor]:
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    found = [("input", tensor) for tensor in _inputs(network)] + [("output", tensor) for tensor in outputs]
    return [
        EngineTensor(
            name=tensor.name,
            mode=mode,  # type: ignore[arg-type]
            dtype=tensor_dtype(tensor.dtype),
            shape=[int(size) for size in tensor.shape],
        )
        for mode, tensor in found
    ]


def _parser_errors(parser: Any) -> list[str]:
    found = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        where = f"{error.node_operator()} {error.node_name()}".strip()
        found.append(f"{where}: {error.desc()}" if where else error.desc())
    return found


def _why_not(messages: Sequence[str]) -> str:
    """What the builder said, and what helps where it looked for a GPU, as 1.4 does for weights in blocks."""
    asked = any(_ASKS_FOR_A_GPU in message for message in messages)
    advice = "it needs a GPU for this: take a newer version, or a bundle of `--weights fp16`"
    return f"{advice} ({_reasons(messages)})" if asked else _reasons(messages)


def _reasons(messages: Sequence[str]) -> str:
    """The distinct ones, in order, in one line."""
    distinct = list(dict.fromkeys(" ".join(message.split()) for message in messages))
    more = f" (and {len(distinct) - _REASONS} more)" if len(distinct) > _REASONS else ""
    return "; ".join(distinct[:_REASONS]) + more or "it does not say why"
