"""Checks of a bundle that engines are built from: room for one, and one that fits this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    ENGINE_NAME,
    EngineHost,
    EngineManifest,
    graph_digest,
    platform_name,
    read_engine_manifest,
    require_fit,
)
from starsd_edge.device.facts import DeviceFacts
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.machine import gigabytes
from starsd_edge.errors import EngineError

TENSORRT = "tensorrt"


@dataclass(frozen=True)
class EngineNeeds:
    """Bytes that an engine of a bundle takes.

    Attributes:
        building: of the machine that builds it.
        running: of the GPU, for one sequence at the engine's limits.
        context: those limits: tokens of the sequence.
    """

    building: int
    running: int
    context: int


def engines_of(bundle: Bundle, places: Sequence[Path]) -> list[tuple[Path, EngineManifest]]:
    """Engines that were built of a bundle's graph, the newest first.

    Args:
        places: directories with an engine in each of their directories.
    """
    found = [file for place in places for file in place.glob(f"*/{ENGINE_NAME}")]
    engines = []
    for file in sorted(found, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            engine = read_engine_manifest(file.parent)
        except EngineError:
            continue  # damaged, or of another version of this program
        if engine.bundle == bundle.manifest.name or engine.graph_digest == graph_digest(bundle.manifest):
            engines.append((file.parent, engine))
    return engines


def engine_host(device: DeviceFacts, tensorrt: ProbedModule | None) -> EngineHost | None:
    """What would run an engine of TensorRT here; None where there is no GPU or no library."""
    if tensorrt is None or tensorrt.error or not tensorrt.version or not device.compute_capability:
        return None
    version = tensorrt.version if device.system is None else device.system.full_version(tensorrt.version)
    return EngineHost(TENSORRT, version, device.compute_capability, platform_name())


def check_engine_memory(name: str, needs: EngineNeeds, device: DeviceFacts) -> Iterator[Finding]:
    """Whether there is room to run an engine, and to build it. A board's GPU has the machine's memory.

    Args:
        name: of the bundle.
    """
    if device.memory is None:
        return
    own = device.gpus.found[0] if device.board is None and device.gpus.found else None
    total = own.memory_bytes if own else device.memory.total
    free = (own.free_bytes or own.memory_bytes) if own else device.memory.free
    running = f"{name}: its engine takes about {gigabytes(needs.running)} to run with {needs.context} tokens"
    smaller = "give a smaller --context when you build it, or export smaller weights (--weights int8, int4)"
    if needs.running > total:
        text = f"{running}, and there are {gigabytes(total)} in all"
        yield Finding("engine memory", Level.WARNING, text, smaller)
        return
    if needs.running > free:
        text = f"{running}, and {gigabytes(free)} are free"
        yield Finding("engine memory", Level.WARNING, text, f"close other programs, or {smaller}")
        return
    building = f"about {gigabytes(needs.building)} to build it"
    if needs.building > device.memory.free:
        text = f"{running}; {building} are more than the {gigabytes(device.memory.free)} that are free"
        yield Finding("engine memory", Level.WARNING, text, f"close other programs before you build it, or {smaller}")
        return
    yield Finding("engine memory", Level.OK, f"{running}, {building}; {gigabytes(free)} are free")


def check_engine(bundle: Bundle, engines: Sequence[tuple[Path, EngineManifest]], host: EngineHost) -> Finding:
    """Whether one of the engines fits this machine.

    Args:
        engines: of the bundle, the newest first.
        host: what would run it.
    """
    name = bundle.path.name
    why = ""
    for directory, engine in engines:
        try:
            require_fit(directory, engine, host, bundle.manifest)
        except EngineError as error:
            why = why or str(error)
            continue
        limits = engine.limits
        text = (
            f"{name}: built for {engine.compute_capability} and {engine.library} {engine.version}, up to "
            f"{limits.max_context} tokens, trees of {limits.max_tree} rows"
        )
        return Finding("engine", Level.OK, text)
    if why:
        return Finding("engine", Level.WARNING, f"{name}: {why}")
    remedy = f"starsd-edge export {bundle.path} --engine {TENSORRT}"
    return Finding("engine", Level.NOTE, f"{name}: no engine was built of it on this machine", remedy)
