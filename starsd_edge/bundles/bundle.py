"""A bundle on disk: its manifest, read and checked, and the files it vouches for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.checked_files import file_digest
from starsd_edge.bundles.manifest import GRAPH_REVISION, SCHEMA_VERSION, Manifest
from starsd_edge.errors import BundleError

TOKENIZER_NAME = "tokenizer.json"
TARGET_KIND = "target"
_USES = {TARGET_KIND: "run-target", "draft-head": "run-draft alone (a head that drafts)"}
_MAX_MANIFEST_BYTES = 1 << 20
_NOT_READABLE = (msgspec.DecodeError, RecursionError)
"""What decoding raises: the second for text of many brackets."""
_REMEDY = "make the bundle again with `starsd-edge export`"

ManifestType = TypeVar("ManifestType", bound=msgspec.Struct)


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest has been read.

    Attributes:
        path: its directory.
        manifest: what it says about itself.
    """

    path: Path
    manifest: Manifest


def load_bundle(path: Path, *, check_files: bool = True, anew: bool = False) -> Bundle:
    """Read a bundle and check that it is whole.

    Args:
        path: the bundle's directory.
        check_files: compare the sha256 of every file; otherwise only that each is there.
        anew: read files that were read before and have not changed since, too (see `checked_files`).

    Raises:
        BundleError: missing, incomplete, altered (the file is named), or written for another version.
    """
    manifest = read_manifest(path, Manifest, TARGET_KIND)
    check_listed_files(path, manifest.files, _needed(manifest), check_hashes=check_files, anew=anew)
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


def write_manifest(directory: Path, manifest: msgspec.Struct, name: str = MANIFEST_NAME) -> None:
    """Write a manifest into a directory that holds every other file of the bundle, engine or head."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / name).write_bytes(text + b"\n")


def bundle_kind(path: Path) -> str:
    """What a bundle is for, from its manifest alone.

    Raises:
        BundleError: no manifest, or a damaged one.
    """
    file, data = _read_file(path)
    return _head_of(file, data).kind


def read_manifest(path: Path, schema: type[ManifestType], kind: str) -> ManifestType:
    """The manifest of a bundle that has to be of this kind.

    Raises:
        BundleError: missing, damaged, of another kind, or written for another version.
    """
    file, data = _read_file(path)
    head = _head_of(file, data)
    if head.kind != kind:
        raise BundleError(f"{path} is a bundle for {_USES.get(head.kind, head.kind)}, not for {_USES[kind]}")
    try:
        return msgspec.json.decode(data, type=schema)
    except _NOT_READABLE as error:
        raise BundleError(f"{file} is damaged ({error}): {_REMEDY}") from None


def check_listed_files(
    path: Path, files: Mapping[str, str], needed: Iterable[str], *, check_hashes: bool = True, anew: bool = False
) -> None:
    """Check that a bundle's files are there and, by their sha256, what they were.

    Args:
        files: the hash of each, by its name.
        needed: names that must be among them.
        anew: read all of them, whatever is known.

    Raises:
        BundleError: names the file.
    """
    for name in needed:
        if name not in files:
            raise BundleError(f"{path / MANIFEST_NAME} names {name} without its hash: {_REMEDY}")
    for name, digest in files.items():
        _check_file(path, name, digest if check_hashes else None, anew)


def _read_file(path: Path) -> tuple[Path, bytes]:
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
    return file, data


class _Head(msgspec.Struct):
    """What every manifest says."""

    schema_version: int
    kind: str = TARGET_KIND


def _head_of(file: Path, data: bytes) -> _Head:
    try:
        head = msgspec.json.decode(data, type=_Head)
    except _NOT_READABLE as error:
        raise BundleError(f"{file} is damaged ({error}): {_REMEDY}") from None
    if head.schema_version != SCHEMA_VERSION:
        raise BundleError(
            f"{file} has schema version {head.schema_version} and this program reads version {SCHEMA_VERSION}: "
            f"{_REMEDY}"
        )
    return head


def _needed(manifest: Manifest) -> list[str]:
    needed = [manifest.graph.file, manifest.graph.weights_file, TOKENIZER_NAME]
    if manifest.text.chat_template is not None:
        needed.append(manifest.text.chat_template)
    return needed


def _check_file(path: Path, name: str, digest: str | None, anew: bool) -> None:
    if not _stays_inside(name):
        raise BundleError(f"{path / MANIFEST_NAME} names {name!r}, which is no file of the bundle: {_REMEDY}")
    file = path / name
    if not file.is_file():
        raise BundleError(f"{path} is incomplete: {name} is missing; {_REMEDY}")
    if digest is not None and file_digest(file, anew=anew) != digest:
        raise BundleError(
            f"{file} is not the file that was exported (its sha256 differs: altered or truncated): {_REMEDY}"
        )


def _stays_inside(name: str) -> bool:
    relative = PurePosixPath(name)
    return bool(relative.parts) and not relative.is_absolute() and ".." not in relative.parts
