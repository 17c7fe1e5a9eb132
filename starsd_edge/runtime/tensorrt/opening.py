"""From a bundle to a running engine on this machine: each thing that is needed is asked for before the next relies on
it.

The driver comes first, because TensorRT's objects end the process without one; then the library, an engine that was
built for exactly this library and GPU, and `cuda-python`. Only then is a plan opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import engines_dir, known_cache
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    EngineHost,
    EngineManifest,
    is_engine_of,
    platform_name,
    read_engine_manifest,
    require_fit,
    require_plan,
)
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.gpus import CudaDevice, cuda_devices
from starsd_edge.device.tensorrt_library import import_library
from starsd_edge.errors import EngineError, StarsdError, UsageError
from starsd_edge.runtime.cuda import import_cuda
from starsd_edge.runtime.tensorrt.engine import TensorrtEngine
from starsd_edge.runtime.tensorrt.plan import require_agreement

LIBRARIES = {"jetson": ("tensorrt",), "cuda": ("tensorrt", "tensorrt_rtx")}
"""By `--device`: what may run there, the best first."""


@dataclass(frozen=True)
class Machine:
    """What this machine is asked.

    Attributes:
        devices: its GPUs.
        load: imports a module by its name.
    """

    devices: Callable[[], Sequence[CudaDevice]] = cuda_devices
    load: Callable[[str], Any] = importlib.import_module


def open_tensorrt(
    bundle: Bundle,
    device: str,
    *,
    allow_inexact: bool = False,
    kv_on_demand: bool = False,
    machine: Machine | None = None,
) -> TensorrtEngine:
    """Open the engine that was built of a bundle for this machine.

    Args:
        device: a key of `LIBRARIES`.
        allow_inexact: let a bundle with coarse weights verify trees as well as chains.
        kv_on_demand: take memory for KV as sequences grow; see `runtime.loading.open_engine`.

    Raises:
        UsageError: the bundle's graph is for CPUs, or a package is missing.
        EngineError: no driver or GPU, no engine that fits, a damaged one, or no memory.
    """
    here = machine or Machine()
    if bundle.manifest.graph.tensorrt is None:
        raise UsageError(
            f"{bundle.path} has a graph for ONNX Runtime: --device {device} needs a bundle of "
            "`starsd-edge export MODEL --runtime tensorrt`, and an engine of it"
        )
    try:
        gpu = here.devices()[0]
    except EngineError as error:
        raise EngineError(f"--device {device}: {error}") from None
    trt, directory, engine = _choose(bundle, device, gpu, here)
    cuda = import_cuda(f"--device {device}", "jetson" if device == "jetson" else "tensorrt", here.load)
    require_agreement(directory, engine, bundle.manifest)
    plan = require_plan(directory, engine)
    return TensorrtEngine(trt, cuda, plan, engine, bundle.manifest, allow_inexact, kv_on_demand)


def host_of(engine: EngineManifest, machine: Machine | None = None) -> EngineHost:
    """What this machine has of what an engine needs.

    Raises:
        EngineError: no driver or GPU.
        UsageError: its library, or a package to reach the GPU with, is missing.
    """
    here = machine or Machine()
    gpu = here.devices()[0]
    _, version = import_library(engine.library, "this engine", "Runtime", here.load)
    import_cuda("this engine", _extra(engine), here.load)
    return EngineHost(engine.library, version, gpu.compute_capability, platform_name())


def open_at(
    directory: Path, engine: EngineManifest, bundle: Manifest, machine: Machine | None = None
) -> TensorrtEngine:
    """Open the engine in a directory, which was found to fit what `host_of` gives.

    Args:
        bundle: the manifest of the bundle that it was built from.

    Raises:
        EngineError: a damaged one, or no memory.
    """
    here = machine or Machine()
    trt, _ = import_library(engine.library, "this engine", "Runtime", here.load)
    cuda = import_cuda("this engine", _extra(engine), here.load)
    return TensorrtEngine(trt, cuda, require_plan(directory, engine), engine, bundle, allow_inexact=True)


def fitting_engine(bundle: Bundle, host: EngineHost) -> tuple[Path, EngineManifest]:
    """The newest engine of a bundle that runs here.

    Raises:
        EngineError: there is none, or none that fits: then why the newest does not.
    """
    why: EngineError | None = None
    for directory, engine in engines_of(bundle):
        try:
            require_fit(directory, engine, host, bundle.manifest)
        except EngineError as error:
            why = why or error
        else:
            return directory, engine
    if why is not None:
        raise why
    kind = host.library.replace("_", "-")
    raise EngineError(
        f"there is no engine of {bundle.manifest.name} on this machine: `starsd-edge export {bundle.path} --engine "
        f"{kind}` builds one"
    )


def engines_of(bundle: Bundle) -> Iterator[tuple[Path, EngineManifest]]:
    """Engines of a bundle's graph, and others of its name: beside it and in the cache, the newest first."""
    places = [bundle.path / "engines", *([] if known_cache() is None else [engines_dir()])]
    found = [file for place in places for file in place.glob(f"*/{ENGINE_NAME}")]
    for file in sorted(found, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            engine = read_engine_manifest(file.parent)
        except EngineError:
            continue  # of another version of this program, or damaged: others may be whole
        if is_engine_of(engine, bundle.manifest):
            yield file.parent, engine


def _choose(bundle: Bundle, device: str, gpu: CudaDevice, here: Machine) -> tuple[Any, Path, EngineManifest]:
    """The library to use and its engine: of those of which there are engines, the first with one that fits."""
    built = {engine.library for _, engine in engines_of(bundle)}
    names = [name for name in LIBRARIES[device] if name in built] or LIBRARIES[device][:1]
    errors: list[StarsdError] = []
    for name in names:
        try:
            module, version = import_library(name, f"--device {device}", "Runtime", here.load)
            host = EngineHost(name, version, gpu.compute_capability, platform_name())
            return module, *fitting_engine(bundle, host)
        except (UsageError, EngineError) as error:
            errors.append(error)
    # That an installed library lacks an engine is nearer to the wish than that another library is not installed.
    raise next((error for error in errors if isinstance(error, EngineError)), errors[0])


def _extra(engine: EngineManifest) -> str:
    """What brings `cuda-python` to where an engine runs."""
    return "jetson" if platform_name().endswith("aarch64") and engine.library == "tensorrt" else "tensorrt"
