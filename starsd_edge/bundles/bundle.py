"""A bundle on disk: its manifest, read and checked, and the files it vouches for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.integrity import sha256_file
from starsd_edge.bundles.manifest import GRAPH_REVISION, SCHEMA_VERSION, Manifest
from starsd_edge.errors import BundleError

TOKENIZER_NAME = "tokenizer.json"
_MAX_MANIFEST_BYTES = 1 << 20
_REMEDY = "make the bundle again with `starsd-edge export`"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest has been read.

    Attributes:
        path: its directory.
        manifest: what it says about itself.
    """

    path: Path
    manifest: Manifest


def load_bundle(path: Path, *, check_files: bool = True) -> Bundle:
    """Read a bundle and check that it is whole.

    Args:
        path: the bundle's directory.
        check_files: compare the sha256 of every file; otherwise only that each is there.

    Raises:
        BundleError: missing, incomplete, altered (the file is named), or written for another version.
    """
    manifest = _read_manifest(path)
    _require_listed(path, manifest)
    for name, digest in manifest.files.items():
        _check_file(path, name, digest if check_files else None)
    return Bundle(path, manifest)


def why_make(path: Path) -> str:
    """Why the bundle at this place has to be made, or made again; "" where it is whole and what `export` writes now."""
    if not path.exists():
        return "there is none yet"
    try:
        revision = load_bundle(path).manifest.graph.revision
    except BundleError:
        return "the one that is there is damaged"
    if revision != GRAPH_REVISION:
        return f"the one that is there has graph revision {revision}, this version writes {GRAPH_REVISION}"
    return ""


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write manifest.json into a directory that holds every other file of the bundle."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / MANIFEST_NAME).write_bytes(text + b"\n")


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST_NAME
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        remedy = "give the directory that `starsd-edge export` wrote"
        if (path / "config.json").exists():
            remedy = f"`starsd-edge export {path}` makes one of this checkpoint"
        raise BundleError(f"{path} is no bundle: it has no {MANIFEST_NAME}; {remedy}") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_MANIFEST_BYTES:
        raise BundleError(
            f"{file} is not a manifest of this program (larger than {_MAX_MANIFEST_BYTES} bytes): {_REMEDY}"
        )
    try:
        _require_version(file, data)
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"{file} is damaged ({error}): {_REMEDY}") from None


class _Version(msgspec.Struct):
    schema_version: int


def _require_version(file: Path, data: bytes) -> None:
    version = msgspec.json.decode(data, type=_Version).schema_version
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{file} has schema version {version} and this program reads version {SCHEMA_VERSION}: {_REMEDY}"
        )


def _require_listed(path: Path, manifest: Manifest) -> None:
    needed = [manifest.graph.file, manifest.graph.weights_file, TOKENIZER_NAME]
    if manifest.text.chat_template is not None:
        needed.append(manifest.text.chat_template)
    for name in needed:
        if name not in manifest.files:
            raise BundleError(f"{path / MANIFEST_NAME} names {name} without its hash: {_REMEDY}")


def _check_file(path: Path, name: str, digest: str | None) -> None:
    if not _stays_inside(name):
        raise BundleError(f"{path / MANIFEST_NAME} names {name!r}, which is no file of the bundle: {_REMEDY}")
    file = path / name
    if not file.is_file():
        raise BundleError(f"{path} is incomplete: {name} is missing; {_REMEDY}")
    if digest is not None and sha256_file(file) != digest:
        raise BundleError(
            f"{file} is not the file that was exported (its sha256 differs: altered or truncated): {_REMEDY}"
        )


def _stays_inside(name: str) -> bool:
    relative = PurePosixPath(name)
    return bool(relative.parts) and not relative.is_absolute() and ".." not in relative.parts
