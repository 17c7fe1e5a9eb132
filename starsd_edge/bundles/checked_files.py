"""Digests of large files, computed once: a start does not read half a gigabyte to find what the last start found.

What was found is kept in the cache, for the file as it was: its size, its inode, and when it and its inode were last
changed. The kernel sets the last of these at every write, and no program can set it back. A file that was changed
within two seconds before it was read is read again next time, because a later write could bear the same time. Files
below `KEPT_FROM` are read every time.

A record counts only if this user owns it and nobody else may write it; one that cannot be read counts for nothing. It
does not notice a disk that gives other bytes than were written: `check` and `doctor` read every file.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from starsd_edge.bundles.cache import known_cache
from starsd_edge.bundles.integrity import sha256_file

KEPT_FROM = 4 << 20
"""Bytes of a file from which its digest is kept."""
_SETTLED_S = 2.0
_MAX_RECORD_BYTES = 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _State(msgspec.Struct, frozen=True):
    """What the file system says of a file; another write makes it another state."""

    size: int
    device: int
    inode: int
    changed_ns: int
    inode_changed_ns: int

    @classmethod
    def of(cls, path: Path) -> _State:
        found = path.stat()
        return cls(found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)

    def is_settled(self, now_s: float) -> bool:
        """Whether a later write would bear another time."""
        return max(self.changed_ns, self.inode_changed_ns) / 1e9 + _SETTLED_S < now_s


class _Record(msgspec.Struct, frozen=True):
    path: str
    state: _State
    sha256: str


def file_digest(
    path: Path,
    *,
    anew: bool = False,
    read: Callable[[Path], str] = sha256_file,
    clock: Callable[[], float] = time.time,
) -> str:
    """sha256 hex digest of a file, read or known.

    Args:
        anew: read it whatever is known.
        read: computes the digest.
        clock: seconds since 1970.
    """
    state = _State.of(path)
    if state.size < KEPT_FROM:
        return read(path)
    place = _place(path)
    if place is not None and not anew:
        known = _known(place)
        if known is not None and (known.path, known.state) == (str(path.absolute()), state):
            return known.sha256
    is_settled = state.is_settled(clock())
    digest = read(path)
    if place is not None and is_settled and _State.of(path) == state:
        _keep(place, _Record(str(path.absolute()), state, digest))
    return digest


def _place(path: Path) -> Path | None:
    cache = known_cache()
    if cache is None:
        return None
    return cache / "checked" / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}.json"


def _known(place: Path) -> _Record | None:
    try:
        file = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
            return None
        return msgspec.json.decode(os.read(file, _MAX_RECORD_BYTES), type=_Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)


def _keep(place: Path, record: _Record) -> None:
    """Where the cache cannot be written, the file is read again next time."""
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(record))
        finally:
            os.close(file)
        staged.replace(place)
