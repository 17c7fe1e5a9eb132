"""Bundles of the default model for the tests, exported once for each state of the code that makes them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.errors import BundleError

if TYPE_CHECKING:
    from starsd_server.drafters.eagle import EagleDrafter

ROOT = Path(__file__).parents[2]
STORE = ROOT / ".cache" / "test-bundles"
# What decides the bytes of a bundle and whether it passes the parity gate.
SOURCES = (
    "export/starsd_export",
    "starsd_edge/runtime",
    "starsd_edge/heads",
    "starsd_edge/parity",
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


@functools.cache
def shipped_head() -> EagleDrafter:
    """The shipped head of the default model as a drafter for one session at a time, exported like the bundles."""
    from starsd_edge.bundles.catalogue import resolve_model
    from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle
    from starsd_edge.heads.loading import open_head
    from starsd_export.draft_heads.bundle import export_draft_bundle
    from starsd_export.draft_heads.shipped_heads import SHIPPED
    from starsd_server.drafters.eagle import EagleDrafter

    place = STORE / _state_of_the_sources() / "smollm2-135m-eagle-int8"
    try:
        bundle = load_draft_bundle(place)
    except BundleError:
        bundle = export_draft_bundle(resolve_model("smollm2-135m"), SHIPPED, place)
    manifest = bundle.manifest
    return EagleDrafter(open_head(bundle, 2), draft_ids(bundle), manifest.fingerprint, manifest.accepts, 1)


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
