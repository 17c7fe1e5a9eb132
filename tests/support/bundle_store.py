"""Bundles of the default model and of tiny ones for the tests, exported once for each state of the code that makes
them.

Comments, docstrings and layout are no part of that state. Of states, the present and the last one are kept, and a file
that is the same in both takes its room once. Workers wait for each other's exports.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.errors import BundleError

if TYPE_CHECKING:
    from starsd_server.drafters.eagle import EagleDrafter

Made = TypeVar("Made")
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
# What decides the tiny checkpoints and heads that tests export.
TINY_SOURCES = tuple(
    ROOT / "tests/support" / f"{name}.py"
    for name in (
        *("tiny_bundles", "tiny_tensorrt", "tiny_eagle3"),
        *("tiny_llama", "small_tokenizers", "public_heads", "reference_heads"),
    )
)
_STATES_KEPT = 1  # earlier states of the sources; each may take a gigabyte


def exported(model_file: Path, weights: str) -> Bundle:
    """The bundle with these weights, by the function that `starsd-edge export` calls."""
    from starsd_export.pipeline import ExportOptions, export_bundle

    place = place_of(f"smollm2-135m-{weights}")
    options = ExportOptions(weights=weights, name=place.name)
    return made_once(place, load_bundle, lambda: export_bundle(model_file, place, options))


@functools.cache
def shipped_head() -> EagleDrafter:
    """The shipped head of the default model as a drafter for one session at a time, exported like the bundles."""
    from starsd_edge.bundles.catalogue import resolve_model
    from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle
    from starsd_edge.heads.loading import open_head
    from starsd_export.draft_heads.bundle import export_draft_bundle
    from starsd_export.draft_heads.trained import SHIPPED
    from starsd_server.drafters.eagle import EagleDrafter

    place = place_of("smollm2-135m-eagle-int8")
    target = resolve_model("smollm2-135m")
    bundle = made_once(place, load_draft_bundle, lambda: export_draft_bundle(target, SHIPPED, place))
    manifest = bundle.manifest
    return EagleDrafter(open_head(bundle, 2), draft_ids(bundle), manifest.fingerprint, manifest.accepts, 1)


def place_of(name: str) -> Path:
    """Where a bundle of this name lies that the sources as they are make. Of earlier states few are kept."""
    state = STORE / _state_of_the_sources()
    if not state.is_dir():
        _forget_old_states()
    return state / name


def made_once(place: Path, load: Callable[[Path], Made], make: Callable[[], Made]) -> Made:
    """What lies there, or what this makes there: by one process, for which others that want it wait."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return load(place)
        except BundleError:
            made = make()
        share_files(place, [state / place.name for state in STORE.glob("*/") if state != place.parent])
        return made


def tiny_copy(place: Path, name: str, load: Callable[[Path], Made], make: Callable[[Path], object]) -> Made:
    """A copy at `place`, for this process alone, of what `make` writes into the directory that it is given: once."""
    kept = place_of(f"{name}-{_digest_of(TINY_SOURCES)}")

    def made() -> Made:
        if kept.exists():
            shutil.rmtree(kept)  # a make that failed half-way
        make(kept)
        return load(kept)

    made_once(kept, load, made)
    shutil.copytree(kept, place)
    return load(place)


def share_files(place: Path, others: list[Path]) -> None:
    """Let files of a bundle that are also those of another one be the same on the disk. Nobody writes into them."""
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        for other in others:
            twin = other / file.relative_to(place)
            if twin.is_file() and not twin.samefile(file) and _digest(twin) == _digest(file):
                linked = file.with_name(f".{file.name}.link")
                linked.unlink(missing_ok=True)
                os.link(twin, linked)
                linked.replace(file)
                break


def what_runs(source: str) -> str:
    """A module's code without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _digest(file: Path) -> str:
    with file.open("rb") as data:
        digest = hashlib.sha256()
        while block := data.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


@functools.cache
def _state_of_the_sources() -> str:
    return _digest_of(tuple(_files()), LIBRARIES)


@functools.cache
def _digest_of(files: tuple[Path, ...], libraries: tuple[str, ...] = ()) -> str:
    digest = hashlib.sha256()
    for library in libraries:
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0{what_runs(file.read_text())}\0".encode())
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    found = [ROOT / source for source in SOURCES]
    return [file for path in found for file in ([path] if path.is_file() else path.rglob("*.py"))]


def _forget_old_states() -> None:
    states = sorted(STORE.glob("*/"), key=lambda state: state.stat().st_mtime)
    for state in states[:-_STATES_KEPT]:
        shutil.rmtree(state, ignore_errors=True)
