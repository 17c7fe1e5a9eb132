"""Bundles of the default model for the tests, exported once for each state of the code that makes them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from pathlib import Path

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.errors import BundleError

ROOT = Path(__file__).parents[2]
STORE = ROOT / ".cache" / "test-bundles"
# What decides the bytes of a bundle and whether it passes the parity gate.
SOURCES = (
    "export/starsd_export",
    "starsd_edge/runtime",
    "starsd_edge/bundles/manifest.py",
    "starsd_edge/bundles/fingerprints.py",
)
LIBRARIES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
_STATES_KEPT = 3  # bundles of earlier states of the sources; each state takes most of a gigabyte


def exported(model_file: Path, weights: str) -> Bundle:
    """The bundle with these weights, by the function that `starsd-edge export` calls."""
    from starsd_export.pipeline import ExportOptions, export_bundle

    place = STORE / _state_of_the_sources() / f"smollm2-135m-{weights}"
    try:
        return load_bundle(place)
    except BundleError:
        _forget_old_states()
        return export_bundle(model_file, place, ExportOptions(weights=weights, name=place.name))


def _state_of_the_sources() -> str:
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    for file in sorted(_files()):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    found = [ROOT / source for source in SOURCES]
    return [file for path in found for file in ([path] if path.is_file() else path.rglob("*.py"))]


def _forget_old_states() -> None:
    states = sorted(STORE.glob("*/"), key=lambda state: state.stat().st_mtime)
    for state in states[:-_STATES_KEPT]:
        shutil.rmtree(state, ignore_errors=True)
