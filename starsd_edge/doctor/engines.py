"""Checks of a bundle that engines are built from: room for one, and one that fits this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.engine_manifest import (
    EngineHost,
    EngineManifest,
    platform_name,
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


def engine_hosts(device: DeviceFacts, modules: Mapping[str, ProbedModule | None]) -> tuple[EngineHost, ...]:
    """What would run an engine here; nothing where there is no GPU or no library.

    Args:
        modules: what importing TensorRT's libraries gives, by their names.
    """
    if not device.compute_capability:
        return ()
    hosts = []
    for name, module in modules.items():
        if module is None or module.error or not module.version:
            continue
        full = device.system.full_version if name == TENSORRT and device.system is not None else str
        hosts.append(EngineHost(name, full(module.version), device.compute_capability, platform_name()))
    return tuple(hosts)


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


def check_engine(
    bundle: Bundle, engines: Sequence[tuple[Path, EngineManifest]], hosts: Sequence[EngineHost]
) -> Finding:
    """Whether one of the engines fits this machine.

    Args:
        engines: of the bundle, the newest first.
        hosts: what would run it, at least one.
    """
    name = bundle.path.name
    why = ""
    for directory, engine in engines:
        host = next((host for host in hosts if host.library == engine.library), hosts[0])
        try:
            require_fit(directory, engine, host, bundle.manifest)
        except EngineError as error:
            why = why or str(error)
            continue
        limits = engine.limits
        text = (
            f"{name}: built for {', '.join(engine.compute_capabilities)} and {engine.library} {engine.version}, up to "
            f"{limits.max_context} tokens, trees of {limits.max_tree} rows"
        )
        return Finding("engine", Level.OK, text)
    if why:
        return Finding("engine", Level.WARNING, f"{name}: {why}")
    kind = hosts[0].library.replace("_", "-")
    remedy = f"starsd-edge export {bundle.path} --engine {kind}"
    return Finding("engine", Level.NOTE, f"{name}: no engine was built of it on this machine", remedy)
