"""Times of verify passes, kept in the cache for every engine, device and power mode.

`bench verify` and `doctor --network` measure them; `run-target` sizes its first drafts by them and `plan` reckons with
them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median_low
from typing import Annotated

import msgspec
from msgspec import Meta

from starsd_edge.bench.figures import describe_machine, usable_cores
from starsd_edge.bundles.cache import cache_dir
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.device.facts import power_mode_name
from starsd_edge.device.gpus import cuda_devices
from starsd_edge.device.host import Host
from starsd_edge.doctor.machine import MEASURED
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.planning.pass_times import VerifyCurve, VerifyCurves

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class StoredPasses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On so many committed tokens, by the number of rows: the least, the median and the most seconds of a pass."""

    committed: Annotated[int, Meta(ge=0)]
    least: dict[str, Seconds]
    median: dict[str, Seconds]
    most: dict[str, Seconds]


class StoredCurves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the store."""

    bundle: str
    """`files_digest` of what was run, or of what the engine was built from."""
    measured_at: str
    """UTC, like 2026-11-29 20:11."""
    device: str
    """For people: what ran the passes."""
    power_mode: str
    """Of a board, while it was measured; "" elsewhere."""
    passes: int
    """Of each number of rows."""
    lengths: Annotated[list[StoredPasses], Meta(min_length=1)]

    def curves(self) -> VerifyCurves:
        """From the least time of each: other work only adds to it. None below that of fewer rows.

        Raises:
            ValueError: they are no curves.
        """
        return VerifyCurves({each.committed: _curve(each.least) for each in self.lengths})


@dataclass(frozen=True)
class KeptCurves:
    """Curves and where they come from.

    Attributes:
        is_new: they were measured just now.
    """

    curves: VerifyCurves
    stored: StoredCurves
    is_new: bool


@dataclass(frozen=True)
class CurveKey:
    """What times of verify passes depend on.

    Attributes:
        engine: digest of what runs: of the bundle's files, or of an engine's plan.
        device: "cpu", "cuda" or "jetson".
        machine: names and versions of what it runs on and with.
        power_mode: of a board; "" elsewhere.
        threads: of the engine.
    """

    engine: str
    device: str
    machine: Mapping[str, object]
    power_mode: str
    threads: int

    @property
    def name(self) -> str:
        """Of the one file for it."""
        parts = {**asdict(self), "machine": dict(self.machine)}
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


def files_digest(manifest: Manifest) -> str:
    """Of all files of a bundle."""
    return hashlib.sha256(msgspec.json.encode(manifest.files, order="sorted")).hexdigest()


def stored_passes(committed: int, seconds: Mapping[int, Sequence[float]]) -> StoredPasses:
    """Of the seconds of each pass, by the number of rows."""
    least, median, most = (
        {str(rows): pick(times) for rows, times in seconds.items()} for pick in (min, median_low, max)
    )
    return StoredPasses(committed, least, median, most)


class CurveStore:
    """The files below one directory, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: CurveKey) -> KeptCurves | None:
        """The curves of this key; None where there are none, or none that can be read: they are measured anew."""
        return self._read(self._file(key))

    def newest(self, bundle: str) -> KeptCurves | None:
        """The last that were measured of a bundle, on whatever device; None where there are none.

        Args:
            bundle: its `files_digest`.
        """
        files = [self._read(file) for file in self._directory.glob("*.json")]
        found = [kept for kept in files if kept is not None and kept.stored.bundle == bundle]
        return max(found, key=lambda kept: kept.stored.measured_at, default=None)

    def save(self, key: CurveKey, stored: StoredCurves) -> None:
        """Keep them, in the place of older ones.

        Raises:
            OSError: they cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(key), msgspec.json.format(msgspec.json.encode(stored), indent=1))

    def _read(self, file: Path) -> KeptCurves | None:
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=StoredCurves)
            return KeptCurves(stored.curves(), stored, is_new=False)
        except (OSError, ValueError):
            return None

    def _file(self, key: CurveKey) -> Path:
        return self._directory / f"{key.name}.json"


def _curve(seconds: Mapping[str, float]) -> VerifyCurve:
    return VerifyCurve.through({int(rows): [each] for rows, each in seconds.items()})


log = logging.getLogger(__name__)

_LASTING = ("cpu", "cores", "system", "versions")
"""Fields of a machine's description that a curve depends on."""
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
