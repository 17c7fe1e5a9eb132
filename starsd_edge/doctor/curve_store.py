"""Verify curves kept in the cache, so that the next check of the same bundle on the same machine is quick."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from starsd_edge.bundles.integrity import write_whole
from starsd_edge.bundles.manifest import Manifest
from starsd_edge.planning.curve import VerifyCurve

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class StoredCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the store."""

    measured_at: str
    """UTC, like 2026-11-29 20:11."""
    committed: int
    """Tokens in the KV while it was measured."""
    passes: int
    """Of each size."""
    seconds: dict[str, Seconds]
    """By the number of rows."""


@dataclass(frozen=True)
class KeptCurve:
    """A curve and where it comes from.

    Attributes:
        is_new: it was measured just now.
    """

    curve: VerifyCurve
    stored: StoredCurve
    is_new: bool


def curve_key(manifest: Manifest, machine: Mapping[str, object], threads: int) -> str:
    """Name of the one file for this bundle on this machine with so many threads."""
    parts = {"files": manifest.files, "machine": dict(machine), "threads": threads}
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


class CurveStore:
    """The files below one directory, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: str) -> KeptCurve | None:
        """The curve of this key; None where there is none, or none that can be read: it is measured anew."""
        try:
            stored = msgspec.json.decode(self._file(key).read_bytes(), type=StoredCurve)
            curve = VerifyCurve({int(rows): seconds for rows, seconds in stored.seconds.items()})
        except (OSError, ValueError):
            return None
        return KeptCurve(curve, stored, is_new=False)

    def save(self, key: str, stored: StoredCurve) -> None:
        """Keep it, in the place of an older one.

        Raises:
            OSError: it cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(key), msgspec.json.encode(stored))

    def _file(self, key: str) -> Path:
        return self._directory / f"{key}.json"
