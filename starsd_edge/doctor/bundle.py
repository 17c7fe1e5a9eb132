"""Checks of one bundle: its files, its memory, and an engine that really runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.doctor.machine import ENGINES, gigabytes
from starsd_edge.heads.draft_bundle import DraftBundle
from starsd_edge.runtime.engine import Engine, Sequence, causal_mask

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


def _forward(engine: Engine, seq: Sequence, token: int, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    positions = np.arange(seq.length, seq.length + rows, dtype=np.int64)
    return engine.forward(seq, np.full(rows, token, dtype=np.int64), positions, causal_mask(rows)).logits


def check_inference(name: str, device: str, inference: Inference) -> Finding:
    """What `run_inference` gave."""
    check = f"engine {device}"
    if not inference.is_finite:
        return Finding(
            check, Level.FAILURE, f"{name}: the logits are no numbers", "export the bundle again, with --weights fp32"
        )
    ran = f"{name}: ran, {1e3 * inference.step_s:.1f} ms for a token"
    if inference.largest_difference == 0:
        return Finding(check, Level.OK, f"{ran}; a chain verified at once has the same bits as steps")
    text = f"{ran}; a chain verified at once differs from steps by up to {inference.largest_difference:.1e} in a logit"
    if inference.same_choice:
        return Finding(check, Level.NOTE, f"{text}: near ties may be decided otherwise")
    return Finding(check, Level.WARNING, f"{text} and chooses other tokens", "use a bundle with fp32 weights")


def check_files(bundle: Bundle) -> Finding:
    """A bundle that `load_bundle` found whole."""
    size = gigabytes(bundle_bytes(bundle))
    graph = bundle.manifest.graph
    text = f"{bundle.path.name}: {len(bundle.manifest.files)} files whole, {size}, {graph.weights} weights"
    return Finding("bundle", Level.OK, text)


def check_head_files(bundle: DraftBundle) -> Finding:
    """A draft head's bundle that `load_draft_bundle` found whole: for hubs, where it runs."""
    manifest = bundle.manifest
    text = (
        f"{bundle.path.name}: {len(manifest.files)} files whole, a draft head for run-draft, {manifest.weights} weights"
    )
    return Finding("bundle", Level.OK, text)


def check_extra_files(bundle: Bundle) -> Iterator[Finding]:
    """Files that the manifest does not know, engines that were built of it left out."""
    known = {*bundle.manifest.files, MANIFEST_NAME}
    present = (path.relative_to(bundle.path).as_posix() for path in bundle.path.rglob("*") if path.is_file())
    extra = sorted(name for name in present if name not in known and not name.startswith(f"{ENGINES}/"))
    if extra:
        text = f"{bundle.path.name}: files that the export did not write: {', '.join(extra[:3])}"
        yield Finding("bundle", Level.NOTE, text, "move them elsewhere, or remove them")


def check_memory(bundle: Bundle, available_bytes: int) -> Finding:
    """Whether weights and the KV of its whole context fit into what is free."""
    weights, cache = bundle_bytes(bundle), kv_bytes(bundle.manifest)
    context = bundle.manifest.model.max_context
    text = (
        f"{bundle.path.name} needs {gigabytes(weights + cache)} ({gigabytes(weights)} weights, {gigabytes(cache)} KV "
        f"for {context} tokens)"
    )
    if weights + cache <= available_bytes:
        return Finding("memory", Level.OK, text)
    remedy = "free some memory, lower --context of run-target, or use a smaller bundle"
    return Finding("memory", Level.WARNING, f"{text} and {gigabytes(available_bytes)} are free", remedy)


def bundle_bytes(bundle: Bundle) -> int:
    """Bytes of its files; nearly all are weights."""
    return sum((bundle.path / name).stat().st_size for name in bundle.manifest.files)


def kv_bytes(manifest: Manifest) -> int:
    """Bytes of K and V of one sequence as long as the context."""
    model = manifest.model
    row = 2 * model.n_layers * model.n_kv_heads * model.head_dim * np.dtype(manifest.graph.kv_dtype).itemsize
    return int(row * model.max_context)
