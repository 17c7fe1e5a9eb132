"""Where the measured times of verify passes of a bundle on this machine are kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from starsd_edge.bench.machine import describe_machine, usable_cores
from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.cuda_driver import cuda_devices
from starsd_edge.device.facts import power_mode_name
from starsd_edge.device.host import Host
from starsd_edge.doctor.curve_store import (
    CurveKey,
    CurveStore,
    KeptCurves,
    StoredCurves,
    files_digest,
    stored_passes,
)
from starsd_edge.doctor.machine import MEASURED
from starsd_edge.errors import EngineError, UsageError

log = logging.getLogger(__name__)

_LASTING = ("cpu", "cores", "system", "versions")
"""Of a machine's description, what a curve depends on."""
_CPU = "cpu"
Passes = Mapping[int, Mapping[int, Sequence[float]]]
"""Seconds of each pass, by committed tokens and rows."""


def curve_store() -> CurveStore:
    """Of this machine's cache."""
    return CurveStore(cache_dir() / MEASURED)


def curve_key(manifest: Manifest, threads: int | None = None, device: str = _CPU, digest: str = "") -> CurveKey:
    """Of this bundle on this machine, as it is set now.

    Args:
        threads: of the engine; None for one per core.
        digest: see `EngineSpec`.
    """
    machine = describe_machine(["onnxruntime", "tensorrt"])
    lasting = {name: machine[name] for name in _LASTING} | _accelerator(device)
    engine = digest or files_digest(manifest)
    return CurveKey(engine, device, lasting, power_mode_name(Host()), threads or usable_cores())


def kept_curves(
    manifest: Manifest, threads: int | None = None, device: str = _CPU, digest: str = ""
) -> KeptCurves | None:
    """What was measured for it, if anything was and there is a place for it; arguments as of `curve_key`."""
    return load_curves(curve_key(manifest, threads, device, digest))


def load_curves(key: CurveKey) -> KeptCurves | None:
    """What is kept under it; None where there is nothing, or no place for it."""
    try:
        return curve_store().load(key)
    except UsageError:  # no home directory is known: nothing needs what is kept there
        return None


def keep_curves(key: CurveKey, manifest: Manifest, passes: Passes) -> KeptCurves:
    """Keep the seconds of passes; where that cannot be done, they serve this once."""
    stored = stored_curves(key, manifest, passes)
    try:
        curve_store().save(key, stored)
    except (OSError, UsageError) as error:
        log.warning("the times of verify passes are not kept: %s", error)
    return KeptCurves(stored.curves(), stored, is_new=True)


def stored_curves(key: CurveKey, manifest: Manifest, passes: Passes) -> StoredCurves:
    """The same, as it is kept."""
    return StoredCurves(
        bundle=files_digest(manifest),
        measured_at=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        device=str(key.machine.get("gpu") or key.machine["cpu"]),
        power_mode=key.power_mode,
        passes=min(len(times) for seconds in passes.values() for times in seconds.values()),
        lengths=[stored_passes(committed, seconds) for committed, seconds in sorted(passes.items())],
    )


def _accelerator(device: str) -> dict[str, object]:
    """The GPU, where one runs the engine."""
    if device == _CPU:
        return {}
    try:
        gpu = cuda_devices()[0]
    except EngineError:
        return {}
    return {"gpu": gpu.name, "compute_capability": gpu.compute_capability}
