"""`doctor` on one bundle: its files, room for it, an engine of it that fits this machine, a pass that really runs."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starsd_edge.bundles.bundle import Bundle, bundle_kind, load_bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.bundles.engine_manifest import EngineHost
from starsd_edge.device.facts import DeviceFacts
from starsd_edge.doctor.bundle import (
    EngineNeeds,
    bundle_bytes,
    check_engine,
    check_engine_memory,
    check_extra_files,
    check_files,
    check_head_files,
    check_inference,
    check_memory,
    run_inference,
)
from starsd_edge.doctor.findings import Finding, Level, failure, not_run, note
from starsd_edge.doctor.gather import available_memory
from starsd_edge.doctor.software import SoftwareFacts
from starsd_edge.errors import StarsdError, UsageError, remedy_of
from starsd_edge.heads.draft_bundle import DRAFT_KIND, load_draft_bundle
from starsd_edge.runtime.loading import CPU, CUDA, JETSON

if TYPE_CHECKING:
    from starsd_jetson.target import Target

GPU_DEVICES = (CUDA, JETSON)


@dataclass(frozen=True)
class Here:
    """What is known of this machine.

    Attributes:
        engine_hosts: what would run an engine of TensorRT.
    """

    device: DeviceFacts
    software: SoftwareFacts
    engine_hosts: Sequence[EngineHost]


@dataclass(frozen=True)
class Checked:
    """What came of a bundle beside findings.

    Attributes:
        target: that ran; None where none did.
        devices: on which it ran, or was to.
    """

    target: Target | None = None
    devices: Sequence[str] = ()


def check_bundle(name: str, threads: int | None, here: Here) -> Generator[Finding, None, Checked]:
    """All checks of it.

    Args:
        name: of the bundle, or its path.
        threads: of an engine on the CPU; None for one per core.
    """
    try:
        path = find_bundle(name)
        if bundle_kind(path) == DRAFT_KIND:
            yield check_head_files(load_draft_bundle(path, anew=True))
            return Checked()
        bundle = load_bundle(path, anew=True)
    except StarsdError as error:
        yield failure("bundle", str(error))
        return Checked()
    yield check_files(bundle)
    yield from check_extra_files(bundle)
    devices = yield from _check_engines(bundle, here)
    if CPU in devices:
        available = available_memory()
        yield check_memory(bundle, available)
        if bundle_bytes(bundle) > available:
            text = f"{bundle.path.name}: it does not fit into the free memory"
            yield not_run(f"engine {CPU}", text)
            return Checked()
    ran = None
    for device in devices:
        target, finding = _run_engine(bundle, device, threads)
        yield finding
        ran = ran or target
    return Checked(ran, devices)


def _check_engines(bundle: Bundle, here: Here) -> Generator[Finding, None, Sequence[str]]:
    """Of a bundle that engines are built from, where a GPU could run one. Returns the devices to run it on."""
    from starsd_edge.runtime.tensorrt.opening import engines_of

    if not here.device.compute_capability:
        return (CPU,)
    if bundle.manifest.graph.tensorrt is None:
        if here.device.board is not None:
            text = f"{bundle.path.name}: a graph for the processor's cores, of which no engine can be built"
            remedy = "starsd-edge export MODEL --runtime tensorrt makes one for the GPU"
            yield note("engine", text, remedy)
        return (CPU, CUDA) if here.software.has_cuda_provider else (CPU,)
    yield from check_engine_memory(bundle.path.name, _needs(bundle), here.device)
    if not here.engine_hosts:
        yield not_run("engine", f"{bundle.path.name}: there is no TensorRT to run one")
        return (CPU,)
    finding = check_engine(bundle, [*engines_of(bundle)], here.engine_hosts)
    yield finding
    if finding.level is not Level.OK:
        return (CPU,)
    return (CUDA if here.device.board is None else JETSON,)


def _needs(bundle: Bundle) -> EngineNeeds:
    from starsd_export.engines.profiles import build_bytes, engine_limits, run_bytes

    limits = engine_limits(bundle.manifest)
    weights = (bundle.path / bundle.manifest.graph.weights_file).stat().st_size
    return EngineNeeds(build_bytes(weights), run_bytes(bundle.manifest, limits, weights), limits.max_context)


def _run_engine(bundle: Bundle, device: str, threads: int | None) -> tuple[Target | None, Finding]:
    from starsd_jetson.target import Target

    check, name = f"engine {device}", bundle.path.name
    try:
        target = Target.open(bundle, device, threads)
        token = target.encode("hello", raw=True)[0]
        return target, check_inference(name, device, run_inference(target.engine, token, time.perf_counter))
    except UsageError as error:  # something is not installed, which has a finding of its own
        return None, not_run(check, f"{name}: {error}")
    except StarsdError as error:
        return None, failure(check, f"{name}: {error}")
    except ModuleNotFoundError as error:
        return None, not_run(check, f"{name}: {remedy_of(error)}")
