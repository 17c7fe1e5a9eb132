"""Where the measured verify curve of a bundle on this machine is kept."""

from __future__ import annotations

from starsd_edge.bench.machine import describe_machine
from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.doctor.cache_files import MEASURED
from starsd_edge.doctor.curve_store import CurveStore, KeptCurve, curve_key

_LASTING = ("cpu", "cores", "system", "versions")
"""Of a machine's description, what a curve depends on."""


def place_of(manifest: Manifest, threads: int) -> tuple[CurveStore, str]:
    """The store, and the key in it."""
    machine = describe_machine(["onnxruntime"])
    lasting = {name: machine[name] for name in _LASTING}
    return CurveStore(cache_dir() / MEASURED), curve_key(manifest, lasting, threads)


def kept_curve(manifest: Manifest, threads: int) -> KeptCurve | None:
    """The curve, if one was measured."""
    store, key = place_of(manifest, threads)
    return store.load(key)
