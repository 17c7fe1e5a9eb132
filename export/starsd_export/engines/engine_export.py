"""An engine for a bundle: what is there already, whether there is room, the build, and the directory it ends in."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from starsd_edge import __version__
from starsd_edge.bundles.bundle import Bundle, write_manifest
from starsd_edge.bundles.cache import engines_dir
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    PLAN_NAME,
    EngineHost,
    EngineLimits,
    EngineManifest,
    graph_digest,
    platform_name,
    read_engine_manifest,
    require_fit,
    require_plan,
)
from starsd_edge.bundles.integrity import require_free_space, require_replaceable, sha256_file, staged_directory
from starsd_edge.device.gpus import CudaDevice, cuda_devices
from starsd_edge.errors import EngineError, StarsdError, UsageError, require_one_of
from starsd_export.engines.builder import COMPUTE_CAPABILITIES, ENGINES, Library, open_library
from starsd_export.engines.profiles import PROFILES, engine_limits, plan_bytes, profile_shapes, require_memory
from starsd_export.engines.worker import Built, Order, Progress, run_build

BUILD_REVISION = 2
"""Raised when this program builds another engine from the same graph for the same limits."""
_KEY_DIGITS = 12


@dataclass(frozen=True)
class EngineOptions:
    """What kind of engine.

    Attributes:
        engine: "tensorrt" or "tensorrt-rtx".
        compute_capabilities: kinds of GPU that the engine shall serve, like "sm89"; none takes that of this machine's
            first one. TensorRT-RTX makes one engine for several.
        context: committed tokens that it shall take; None takes the bundle's context.

    Raises:
        UsageError: no such engine or kind of GPU, or one of them twice.
    """

    engine: str
    compute_capabilities: tuple[str, ...] = ()
    context: int | None = None

    def __post_init__(self) -> None:
        require_one_of("engine", "--engine", self.engine, ENGINES)
        wanted = self.compute_capabilities
        if len(set(wanted)) < len(wanted):
            raise UsageError(f"--compute-capability names a kind of GPU twice: {', '.join(wanted)}")
        foreign = [name for name in wanted if name not in COMPUTE_CAPABILITIES]
        if self.engine == "tensorrt-rtx" and foreign:
            known = ", ".join(COMPUTE_CAPABILITIES)
            raise UsageError(f"--compute-capability is one of {known}, not {', '.join(map(repr, foreign))}")


@dataclass(frozen=True)
class BuiltEngine:
    """An engine's directory.

    Attributes:
        path: of it.
        manifest: of it.
        was_there: it had been built before.
    """

    path: Path
    manifest: EngineManifest
    was_there: bool


def export_engine(
    bundle: Bundle,
    options: EngineOptions,
    destination: Path | None = None,
    progress: Callable[[Progress], None] = lambda report: None,
    devices: Callable[[], list[CudaDevice]] = cuda_devices,
) -> BuiltEngine:
    """Build an engine from a bundle's graph, unless the same one is there.

    Args:
        destination: directory of the engine; None takes the cache, under a name that holds all it depends on.
        progress: told how far the build is.
        devices: the GPUs of this machine.

    Raises:
        UsageError: the bundle's graph is for CPUs, the library is missing, or the GPU is not the one named.
        EngineError: no driver or GPU where one is needed.
        StarsdError: no room, or the library does not build it. Nothing is written then.
    """
    if bundle.manifest.graph.tensorrt is None:
        raise UsageError(
            f"{bundle.path} has a graph for ONNX Runtime: engines are built from bundles of "
            "`starsd-edge export MODEL --runtime tensorrt`"
        )
    library, device = _library_and_gpu(options, devices)
    limits = engine_limits(bundle.manifest, options.context)
    capabilities = options.compute_capabilities if device is None else (device.compute_capability,)
    host = EngineHost(ENGINES[options.engine], library.version, capabilities[0], platform_name())
    target = (destination or engines_dir() / engine_name(bundle, host, limits, capabilities[1:])).resolve()
    there = _same_engine(target, bundle, host, limits, capabilities)
    if there is not None:
        return BuiltEngine(target, there, was_there=True)
    require_replaceable(target, ENGINE_NAME, "engine")
    weights = (bundle.path / bundle.manifest.graph.weights_file).stat().st_size
    require_memory(bundle.manifest, limits, weights, device.memory_bytes if device else None)
    require_free_space(target, plan_bytes(weights), "the engine")
    with staged_directory(target) as staging:
        started = time.monotonic()
        built = run_build(_order(bundle, options, host, limits, staging / PLAN_NAME, capabilities), progress)
        seconds = time.monotonic() - started
        manifest = _describe(bundle, host, capabilities, limits, built, staging / PLAN_NAME, seconds)
        write_manifest(staging, manifest, ENGINE_NAME)
    return BuiltEngine(target, manifest, was_there=False)


def engine_name(bundle: Bundle, host: EngineHost, limits: EngineLimits, further: Sequence[str] = ()) -> str:
    """Name of the directory in the cache: readable, with a digest of all that the engine depends on.

    Args:
        further: kinds of GPU that it serves beside the host's.
    """
    manifest = bundle.manifest
    graph = manifest.graph
    parts = (BUILD_REVISION, graph_digest(manifest), graph.weights, graph.kv_strategy, *vars(host).values(), *further)
    key = hashlib.sha256(msgspec.json.encode([*parts, limits])).hexdigest()[:_KEY_DIGITS]
    kinds = "-".join((host.compute_capability, *further))
    return f"{manifest.name}-{host.library.replace('_', '-')}-{kinds}-{key}"


def _library_and_gpu(
    options: EngineOptions, devices: Callable[[], list[CudaDevice]]
) -> tuple[Library, CudaDevice | None]:
    """The driver comes first: TensorRT's own objects end the process where there is none."""
    wanted = options.compute_capabilities
    if options.engine == "tensorrt-rtx" and wanted:
        return open_library(options.engine), None
    try:
        device = devices()[0]
    except EngineError as error:
        if options.engine == "tensorrt-rtx":
            raise UsageError(f"name the kind of GPU to build for (--compute-capability sm89): {error}") from None
        raise EngineError(f"--engine tensorrt builds on the device that runs the engine, and {error}") from None
    others = [name for name in wanted if name != device.compute_capability]
    if others:
        raise UsageError(
            f"--engine tensorrt builds for this machine's GPU, which is {device.compute_capability} ({device.name}), "
            f"and not for {', '.join(others)}"
        )
    return open_library(options.engine), device


def _same_engine(
    target: Path, bundle: Bundle, host: EngineHost, limits: EngineLimits, capabilities: Sequence[str]
) -> EngineManifest | None:
    try:
        manifest = read_engine_manifest(target)
        require_fit(target, manifest, host, bundle.manifest)
        require_plan(target, manifest)
    except StarsdError:
        return None
    same = manifest.limits == limits and manifest.compute_capabilities == tuple(capabilities)
    return manifest if same else None


def _order(
    bundle: Bundle, options: EngineOptions, host: EngineHost, limits: EngineLimits, plan: Path, wanted: Sequence[str]
) -> Order:
    # TensorRT times its kernels on the GPU; what one build has measured serves the next.
    timings = engines_dir() / "timing" / f"{host.library}-{host.version}-{host.compute_capability}.cache"
    is_rtx = host.library == "tensorrt_rtx"
    return Order(
        engine=options.engine,
        graph=str(bundle.path / bundle.manifest.graph.file),
        plan=str(plan),
        shapes=[dict(shapes) for shapes in profile_shapes(bundle.manifest, limits)],
        compute_capabilities=list(wanted) if is_rtx else [],
        timing_cache=None if is_rtx else str(timings),
    )


def _describe(
    bundle: Bundle,
    host: EngineHost,
    capabilities: Sequence[str],
    limits: EngineLimits,
    built: Built,
    plan: Path,
    seconds: float,
) -> EngineManifest:
    graph = bundle.manifest.graph
    return EngineManifest(
        schema_version=1,
        bundle=bundle.manifest.name,
        graph_digest=graph_digest(bundle.manifest),
        library=host.library,  # type: ignore[arg-type]
        version=built.version,
        compute_capability=host.compute_capability,
        platform=host.platform,
        weights=graph.weights,
        kv_strategy=graph.kv_strategy,
        limits=limits,
        profiles=list(PROFILES),
        tensors=built.tensors,
        aliases=_aliases(built) if graph.kv_strategy == "inplace" else {},
        plan_bytes=plan.stat().st_size,
        plan_sha256=sha256_file(plan),
        created_by=f"starsd-edge {__version__} ({host.library} {built.version})",
        build_seconds=round(seconds, 2),
        build_memory_bytes=built.memory_bytes,
        further_capabilities=list(capabilities[1:]),
    )


def _aliases(built: Built) -> dict[str, str]:
    """A cache goes out where it came in."""
    outputs = [tensor.name for tensor in built.tensors if tensor.mode == "output"]
    return {name: name.replace("present_", "past_", 1) for name in outputs if name.startswith("present_")}
