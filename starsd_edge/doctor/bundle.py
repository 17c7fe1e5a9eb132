"""Checks of one bundle: its files, its memory, an engine that really runs it, and for a bundle that engines are built
from, room for one and one that fits this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.engine_manifest import (
    EngineHost,
    EngineManifest,
    platform_name,
    require_fit,
)
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.facts import DeviceFacts
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.doctor.findings import Finding, failure, note, ok, warning
from starsd_edge.doctor.machine import ENGINES, gigabytes
from starsd_edge.errors import EngineError
from starsd_edge.heads.draft_bundle import DraftBundle
from starsd_edge.runtime.engine import Engine, causal_mask
from starsd_edge.runtime.engine import Sequence as EngineSequence

_CHAIN = 4
"""Rows of the verify pass that is compared with one-token steps: a short draft."""


@dataclass(frozen=True)
class Inference:
    """What a few passes gave.

    Attributes:
        step_s: a pass over one token, in seconds, after the first.
        is_finite: whether all logits were numbers.
        largest_difference: between the logits of a verify pass over a chain and those of one-token steps.
        same_choice: whether both choose the same tokens.
    """

    step_s: float
    is_finite: bool
    largest_difference: float
    same_choice: bool


def run_inference(engine: Engine, token: int, clock: Callable[[], float]) -> Inference:
    """A chain of this token verified in one pass, and the same token by token.

    Args:
        clock: monotonic seconds.

    Raises:
        EngineError: the engine refuses.
    """
    rows = min(_CHAIN, engine.spec.max_tree)
    chain = engine.open(rows)
    whole = _forward(engine, chain, token, rows)
    steps = engine.open(rows)
    single, seconds = [], math.inf
    for _ in range(rows):
        began = clock()
        single.append(_forward(engine, steps, token, 1)[0])
        seconds = min(seconds, clock() - began)
        engine.commit(steps, [0])
    stepwise = np.stack(single)
    finite = bool(np.isfinite(whole).all() and np.isfinite(stepwise).all())
    difference = float(np.abs(whole - stepwise).max()) if finite else math.inf
    return Inference(seconds, finite, difference, bool((whole.argmax(axis=1) == stepwise.argmax(axis=1)).all()))


def _forward(engine: Engine, seq: EngineSequence, token: int, rows: int) -> npt.NDArray[np.float32]:
    positions = np.arange(seq.length, seq.length + rows, dtype=np.int64)
    return engine.forward(seq, np.full(rows, token, dtype=np.int64), positions, causal_mask(rows)).logits


def check_inference(name: str, device: str, inference: Inference) -> Finding:
    """What `run_inference` gave."""
    check = f"engine {device}"
    if not inference.is_finite:
        return failure(check, f"{name}: the logits are no numbers", "export the bundle again, with --weights fp32")
    ran = f"{name}: ran, {1e3 * inference.step_s:.1f} ms for a token"
    if inference.largest_difference == 0:
        return ok(check, f"{ran}; a chain verified at once has the same bits as steps")
    text = f"{ran}; a chain verified at once differs from steps by up to {inference.largest_difference:.1e} in a logit"
    if inference.same_choice:
        return note(check, f"{text}: near ties may be decided otherwise")
    return warning(check, f"{text} and chooses other tokens", "use a bundle with fp32 weights")


def check_files(bundle: Bundle) -> Finding:
    """A bundle that `load_bundle` found whole."""
    size = gigabytes(bundle_bytes(bundle))
    graph = bundle.manifest.graph
    text = f"{bundle.path.name}: {len(bundle.manifest.files)} files whole, {size}, {graph.weights} weights"
    return ok("bundle", text)


def check_head_files(bundle: DraftBundle) -> Finding:
    """A draft head's bundle that `load_draft_bundle` found whole: for hubs, where it runs."""
    manifest = bundle.manifest
    text = (
        f"{bundle.path.name}: {len(manifest.files)} files whole, a draft head for run-draft, {manifest.weights} weights"
    )
    return ok("bundle", text)


def check_extra_files(bundle: Bundle) -> Iterator[Finding]:
    """Files that the manifest does not know, engines that were built of it left out."""
    known = {*bundle.manifest.files, MANIFEST_NAME}
    present = (path.relative_to(bundle.path).as_posix() for path in bundle.path.rglob("*") if path.is_file())
    extra = sorted(name for name in present if name not in known and not name.startswith(f"{ENGINES}/"))
    if extra:
        text = f"{bundle.path.name}: files that the export did not write: {', '.join(extra[:3])}"
        yield note("bundle", text, "move them elsewhere, or remove them")


def check_memory(bundle: Bundle, available_bytes: int) -> Finding:
    """Whether weights and the KV of its whole context fit into what is free."""
    weights, cache = bundle_bytes(bundle), kv_bytes(bundle.manifest)
    context = bundle.manifest.model.max_context
    text = (
        f"{bundle.path.name} needs {gigabytes(weights + cache)} ({gigabytes(weights)} weights, {gigabytes(cache)} KV "
        f"for {context} tokens)"
    )
    if weights + cache <= available_bytes:
        return ok("memory", text)
    remedy = "free some memory, lower --context of run-target, or use a smaller bundle"
    return warning("memory", f"{text} and {gigabytes(available_bytes)} are free", remedy)


def bundle_bytes(bundle: Bundle) -> int:
    """Bytes of its files; nearly all are weights."""
    return sum((bundle.path / name).stat().st_size for name in bundle.manifest.files)


def kv_bytes(manifest: Manifest) -> int:
    """Bytes of K and V of one sequence as long as the context."""
    model = manifest.model
    row = 2 * model.n_layers * model.n_kv_heads * model.head_dim * np.dtype(manifest.graph.kv_dtype).itemsize
    return int(row * model.max_context)


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
        yield warning("engine memory", text, smaller)
        return
    if needs.running > free:
        text = f"{running}, and {gigabytes(free)} are free"
        yield warning("engine memory", text, f"close other programs, or {smaller}")
        return
    building = f"about {gigabytes(needs.building)} to build it"
    if needs.building > device.memory.free:
        text = f"{running}; {building} are more than the {gigabytes(device.memory.free)} that are free"
        yield warning("engine memory", text, f"close other programs before you build it, or {smaller}")
        return
    yield ok("engine memory", f"{running}, {building}; {gigabytes(free)} are free")


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
        return ok("engine", text)
    if why:
        return warning("engine", f"{name}: {why}")
    kind = hosts[0].library.replace("_", "-")
    remedy = f"starsd-edge export {bundle.path} --engine {kind}"
    return note("engine", f"{name}: no engine was built of it on this machine", remedy)
