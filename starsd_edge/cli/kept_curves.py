"""Where the measured times of verify passes of a bundle on this machine are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from starsd_edge.bench.machine import describe_machine, usable_cores
from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.facts import power_mode_name
from starsd_edge.device.host import Host
from starsd_edge.doctor.cache_files import MEASURED
from starsd_edge.doctor.curve_store import (
    CurveKey,
    CurveStore,
    KeptCurves,
    StoredCurves,
    files_digest,
    stored_passes,
)
from starsd_edge.errors import EngineError
from starsd_edge.runtime.cuda_driver import cuda_devices

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
    """What was measured for it, if anything was; arguments as of `curve_key`."""
    return curve_store().load(curve_key(manifest, threads, device, digest))


def keep_curves(key: CurveKey, manifest: Manifest, passes: Passes) -> KeptCurves:
    """Keep the seconds of passes.

    Raises:
        OSError: they cannot be written.
    """
    stored = stored_curves(key, manifest, passes)
    curve_store().save(key, stored)
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
