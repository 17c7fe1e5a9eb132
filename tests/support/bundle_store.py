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
# Where that lies which decides the bytes of a bundle and whether it passes the parity gate: of these folders, what the
# exporters import, at whatever depth.
EXPORTERS = ("starsd_export.pipeline", "starsd_export.draft_heads.bundle")
SOURCES = (
    "export/starsd_export",
    "starsd_edge/runtime",
    "starsd_edge/heads",
    "starsd_edge/parity",
    "starsd_edge/bundles/manifest.py",
    "starsd_edge/bundles/fingerprints.py",
)
# Imported where there is a GPU only, so not by an export here.
ON_GPUS = tuple(
    f"starsd_edge/runtime/{name}" for name in ("tensorrt", "cuda.py", "cuda_caches.py", "onnx_cuda_engine.py")
)
LIBRARIES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
# What decides the tiny checkpoints and heads that tests export.
TINY_SOURCES = tuple(
    ROOT / "tests/support" / f"{name}.py"
    for name in (
        *("tiny_bundles", "tiny_tensorrt", "tiny_eagle3", "tiny_families"),
        *("tiny_llama", "small_tokenizers", "public_heads", "reference_heads"),
    )
)


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
    return used_now(STORE / _state_of_the_sources()) / name


def used_now(state: Path) -> Path:
    """This directory, which others lie beside that are for other states: of those, the one used last is kept."""
    if state.is_dir():
        os.utime(state)
    others = sorted((other for other in state.parent.glob("*/") if other != state), key=lambda it: it.stat().st_mtime)
    for old in others[:-1]:
        shutil.rmtree(old, ignore_errors=True)
    return state


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


def key_of(*options: object) -> str:
    """A part of a name for what is made with these options: a short hash of how they are written."""
    return hashlib.sha256(repr(options).encode()).hexdigest()[:8]


def tiny_copy(place: Path, name: str, load: Callable[[Path], Made], make: Callable[[Path], object]) -> Made:
    """A copy at `place`, for this process alone, of what `make` writes into the directory that it is given: once."""
    kept = place_of(f"{name}-{digest_of(TINY_SOURCES)}")

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
    return digest_of(tuple(sources()), LIBRARIES)


@functools.cache
def digest_of(files: tuple[Path, ...], libraries: tuple[str, ...] = ()) -> str:
    """A name for what these files and the installed versions of these libraries decide."""
    digest = hashlib.sha256()
    for library in libraries:
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0{what_runs(file.read_text())}\0".encode())
    return digest.hexdigest()[:16]


def sources() -> list[Path]:
    """The files that decide what is exported."""
    found = imported_by(*EXPORTERS)
    places = [[ROOT / place for place in places] for places in (SOURCES, ON_GPUS)]
    ours, on_gpus = ({file for place in each for file in found if file.is_relative_to(place)} for each in places)
    return sorted(ours - on_gpus)


def imported_by(*modules: str) -> set[Path]:
    """Files of these modules, and of those of ours that they import at whatever depth, also in functions."""
    found: set[Path] = set()
    todo = list(modules)
    while todo:
        file = file_of(todo.pop())
        if file is not None and file not in found:
            found.add(file)
            todo += _imported(file)
    return found


def _imported(file: Path) -> list[str]:
    """Names of modules, and of what may be one, that it imports anywhere."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return names


def file_of(module: str) -> Path | None:
    """Where it lies, None for what is no module of ours."""
    if not module.startswith("starsd_"):
        return None
    place = ROOT / ("export" if module.startswith("starsd_export") else "") / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
