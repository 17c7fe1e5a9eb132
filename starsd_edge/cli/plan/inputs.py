"""The numbers behind `starsd-edge plan`: options, a bundle's facts, a file of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.catalogue import find_bundle
from starsd_edge.cli.plan.options import MemoryOptions, PlanOptions
from starsd_edge.cli.shared_options import parse_shape
from starsd_edge.doctor.curve_store import KeptCurves, curve_store, files_digest, kept_curves
from starsd_edge.errors import UsageError
from starsd_edge.planning.acceptance import EXPECTED_RANKS, FIRST_RATIO, LevelAcceptance
from starsd_edge.planning.hub_share import pass_seconds
from starsd_edge.planning.law import LinkCost, bytes_down, bytes_up
from starsd_edge.planning.measured_file import read_measured
from starsd_edge.planning.memory import GIB, KIB, DraftMemory, TargetMemory, fit
from starsd_edge.planning.pass_times import VerifyCurve
from starsd_edge.planning.plan import (
    Inputs,
    MeasuredRound,
    at_links,
    at_targets,
    break_even_rtt_s,
    knee,
    measured_at_targets,
    measured_knee,
    telling_counts,
)
from starsd_edge.planning.report import MemoryPlan, StarPlan, Traffic
from starsd_edge.planning.times import SampledService, SampledTimes
from starsd_edge.telemetry.service_model import ServiceCost

MOST_NODES = 256
USUAL_COMMITTED = 256
"""Committed tokens before the verify passes that the plan reckons with."""
ASSUMED_VERIFY_S = 0.035
ASSUMED_GROWTH = 0.03
ASSUMED_FEATURE_BYTES = 8192
OTHER_RTTS_S = (0.0002, 0.001, 0.005, 0.02, 0.05, 0.1)
HUB_SESSIONS = 16
_KV_BYTES = {"float16": 2, "float32": 4}
_BITS_PER_BYTE = 8


def assumed_plan(options: PlanOptions) -> StarPlan:
    """From a model of the drafter, a verify curve and a link.

    Raises:
        UsageError: a number that cannot be, a bundle that cannot be found.
    """
    bundle = None if options.bundle is None else load_bundle(find_bundle(options.bundle), check_files=False)
    curve = _curve(options, bundle)
    inputs = _inputs(options, curve.curve, bundle)
    found = knee(inputs)
    alone = found.alone
    up_bytes, down_bytes = bytes_up(alone.tokens, inputs.feature_bytes), bytes_down(alone.shape.max_nodes)
    other_links = [LinkCost(rtt_s, inputs.link.up_bytes_per_s, inputs.link.down_bytes_per_s) for rtt_s in OTHER_RTTS_S]
    return StarPlan(
        sources={
            "drafter": f"assumed: {_drafter_text(options)}",
            "acceptance": f"assumed: {options.drafter.acceptance}",
            "verify": curve.origin,
            "link": f"assumed: {options.target.rtt_ms:g} ms, {options.target.mbit:g} Mbit/s each way",
        },
        is_measured=False,
        knee=found,
        rows=[at_targets(inputs, count, options.seed) for count in telling_counts(found, options.targets)],
        links=at_links(inputs, other_links),
        break_even_rtt_s=break_even_rtt_s(inputs, alone),
        traffic=Traffic(up_bytes, down_bytes, 1 / (alone.draft_s + alone.return_s)),
        memory=_memory(options.memory, bundle),
    )


def measured_plan(options: PlanOptions, path: Path) -> StarPlan:
    """From measured S, Z and E: of the drafts and the link that they were measured with.

    Raises:
        UsageError: the file cannot be used.
    """
    times = read_measured(path)
    measured = MeasuredRound(
        SampledService(times.service_s),
        SampledTimes(times.return_s),
        times.tokens,
        times.plain_s,
        options.drafter.max_batch if len(times.service_s) > 1 else 1,
        options.drafter.order.value,
    )
    found = measured_knee(measured)
    return StarPlan(
        sources={"times": times.origin},
        is_measured=True,
        knee=found,
        rows=[measured_at_targets(measured, count, options.seed) for count in telling_counts(found, options.targets)],
        links=[],
        break_even_rtt_s=None,
        traffic=None,
        memory=_memory(options.memory, None),
    )


def _inputs(options: PlanOptions, curve: VerifyCurve, bundle: Bundle | None) -> Inputs:
    drafter, target = options.drafter, options.target
    shape = parse_shape("--largest-draft", drafter.largest_draft, MOST_NODES)
    survival = parse_acceptance(drafter.acceptance)
    ratios = tuple(FIRST_RATIO**rank for rank in range(min(shape.branching, EXPECTED_RANKS)))
    bytes_per_s = target.mbit * 1e6 / _BITS_PER_BYTE
    cost = ServiceCost(
        fixed_s=drafter.pass_ms / 1e3,
        per_session_s=drafter.session_ms / 1e3,
        per_level_s=drafter.level_ms / 1e3,
        per_node_s=drafter.node_ms / 1e3,
    )
    if pass_seconds(cost, shape, 1) <= 0:
        raise UsageError("a drafter that takes no time has no limits: give --pass-ms or --level-ms")
    plain_s = curve.at(1) + target.own_ms / 1e3 if target.plain_ms is None else target.plain_ms / 1e3
    if plain_s <= 0:
        raise UsageError("a plain step takes time: --plain-ms has to be above 0")
    return Inputs(
        cost=cost,
        acceptance=LevelAcceptance.by_ratio(survival, ratios),
        verify=curve,
        own_s=target.own_ms / 1e3,
        plain_s=plain_s,
        link=LinkCost(target.rtt_ms / 1e3, bytes_per_s, bytes_per_s),
        feature_bytes=_feature_bytes(target.feature_bytes, bundle),
        limit=shape,
        max_batch=drafter.max_batch,
        order=drafter.order.value,
        variation=target.jitter,
    )


@dataclass(frozen=True)
class _Curve:
    curve: VerifyCurve
    origin: str


def _curve(options: PlanOptions, bundle: Bundle | None) -> _Curve:
    if options.target.verify_ms is not None:
        curve = parse_verify(options.target.verify_ms)
        return _Curve(curve, f"given: {_curve_text(curve)}")
    kept = None if bundle is None else _kept(bundle, options.threads)
    if kept is not None:
        curve, stored = kept.curves.at(USUAL_COMMITTED), kept.stored
        on = f"{stored.device}, {stored.power_mode}" if stored.power_mode else stored.device
        return _Curve(curve, f"measured at {stored.measured_at} UTC on {on}: {_curve_text(curve)}")
    curve = grown(ASSUMED_VERIFY_S)
    why = "assumed" if bundle is None else "assumed, `bench verify` measures it"
    return _Curve(curve, f"{why}: {_curve_text(curve)}")


def _kept(bundle: Bundle, threads: int | None) -> KeptCurves | None:
    """Times of this machine's cores, else the last of any device."""
    try:
        return kept_curves(bundle.manifest, threads) or curve_store().newest(files_digest(bundle.manifest))
    except UsageError:  # no home directory is known
        return None


def _curve_text(curve: VerifyCurve) -> str:
    shown = sorted(curve.seconds)[:6]
    return ", ".join(f"{1e3 * curve.seconds[rows]:.3g} ms at {rows}" for rows in shown) + " rows"


def _drafter_text(options: PlanOptions) -> str:
    drafter = options.drafter
    return (
        f"{drafter.pass_ms:g} ms, and {drafter.level_ms:g} ms a level, {drafter.session_ms:g} ms a target, "
        f"{drafter.node_ms:g} ms a draft token"
    )


def _feature_bytes(given: int | None, bundle: Bundle | None) -> int:
    if given is not None:
        return given
    return ASSUMED_FEATURE_BYTES if bundle is None else 2 * bundle.manifest.graph.feature_width


def _memory(options: MemoryOptions, bundle: Bundle | None) -> MemoryPlan | None:
    if options.memory_gib is None:
        return None
    weights, kv_bytes = options.weights_gib, options.kv_kib
    if bundle is not None:
        model = bundle.manifest.model
        size = _KV_BYTES[bundle.manifest.graph.kv_dtype]
        weights = _weights_gib(bundle) if weights is None else weights
        kv_bytes = 2 * model.n_layers * model.n_kv_heads * model.head_dim * size / KIB if kv_bytes is None else kv_bytes
    if weights is None or kv_bytes is None:
        raise UsageError("--memory-gib needs to know the target: name a BUNDLE, or give --weights-gib and --kv-kib")
    target = TargetMemory(weights * GIB, kv_bytes * KIB, options.context)
    draft = DraftMemory(options.draft_gib * GIB, options.draft_kv_kib * KIB)
    accelerator = options.memory_gib * GIB
    return MemoryPlan(
        accelerator,
        options.context,
        fit(accelerator, target, draft),
        draft.hub(HUB_SESSIONS, options.context),
        HUB_SESSIONS,
    )


def _weights_gib(bundle: Bundle) -> float:
    graph = bundle.manifest.graph
    files = [bundle.path / graph.file, bundle.path / graph.weights_file]
    return sum(file.stat().st_size for file in files if file.exists()) / GIB


def parse_acceptance(text: str) -> Sequence[float]:
    """Probabilities by level.

    Raises:
        UsageError: one is none.
    """
    survival = [
        _number(part, f"--acceptance is a probability, or several by level, not {text!r}") for part in text.split(",")
    ]
    if not all(0 <= each <= 1 for each in survival):
        raise UsageError(f"--acceptance: probabilities lie between 0 and 1, not {text}")
    return survival


def parse_verify(text: str) -> VerifyCurve:
    """Milliseconds over one row, or ROWS=MS,...

    Raises:
        UsageError: it is neither.
    """
    how = (
        "--verify-ms is one number of milliseconds, or like 1=35,4=38,8=45 with one for 1 row and none faster than one "
        f"over fewer rows, not {text!r}"
    )
    if "=" not in text:
        one = _number(text, how)
        if one <= 0:
            raise UsageError(how)
        return grown(one / 1e3)
    seconds = {}
    for part in text.split(","):
        rows, _, took = part.partition("=")
        if not (rows.strip().isascii() and rows.strip().isdigit()):
            raise UsageError(how)
        seconds[int(rows)] = _number(took, how) / 1e3
    if any(seconds[fewer] > seconds[more] for fewer, more in pairwise(sorted(seconds))):
        raise UsageError(how)  # drawn on, it would fall below zero
    try:
        return VerifyCurve(seconds)
    except ValueError:
        raise UsageError(how) from None


def grown(one_s: float) -> VerifyCurve:
    """A curve on which each further row adds `ASSUMED_GROWTH`."""
    return VerifyCurve({1: one_s, 2: one_s * (1 + ASSUMED_GROWTH), 101: one_s * (1 + 100 * ASSUMED_GROWTH)})


def _number(text: str, error: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UsageError(error) from None
    if not math.isfinite(number):
        raise UsageError(error)
    return number
