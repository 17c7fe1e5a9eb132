"""Digests of large files, computed once: a start does not read half a gigabyte to find what the last start found.

What was found is kept in the cache, for the file as it was: its size, its inode, and when it and its inode were last
changed. The kernel sets the last of these at every write, and no program can set it back. A file that was changed
within two seconds before it was read is read again next time, because a later write could bear the same time. Files
below `KEPT_FROM` are read every time.

A record counts only if this user owns it and its directory and nobody else may write them; one that cannot be read
counts for nothing. What it says is compared with the manifest each time, as what was read would be. It does not notice
a disk that gives other bytes than were written: `check` and `doctor` read every file.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import msgspec

from starsd_edge.bundles.cache import known_cache
from starsd_edge.bundles.integrity import sha256_stream

KEPT_FROM = 4 << 20
"""Bytes of a file from which its digest is kept."""
_SETTLED_S = 2.0
_MAX_RECORD_BYTES = 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

ReadWatcher = Callable[[Path, int, int], None]
"""Takes a file that is being read, how many of its bytes have been, and how many it has."""
_watcher: ContextVar[ReadWatcher | None] = ContextVar("watcher", default=None)


@contextmanager
def reading_watched(watcher: ReadWatcher) -> Iterator[None]:
    """Have the watcher told of every file whose digest is computed in this block, by this thread."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


class _State(msgspec.Struct, frozen=True):
    """What the file system says of a file; another write makes it another state."""

    size: int
    device: int
    inode: int
    changed_ns: int
    inode_changed_ns: int

    @classmethod
    def of(cls, file: int) -> _State:
        """Of an open file, so that it is the one that is read."""
        found = os.fstat(file)
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
    clock: Callable[[], float] = time.time,
) -> str:
    """sha256 hex digest of a file, read or known.

    Args:
        anew: read it whatever is known.
        clock: seconds since 1970.
    """
    with path.open("rb", buffering=0) as file:
        state = _State.of(file.fileno())
        place = _place(path) if state.size >= KEPT_FROM else None
        known = None if place is None or anew else _known(place)
        if known is not None and (known.path, known.state) == (str(path.absolute()), state):
            return known.sha256
        is_settled = state.is_settled(clock())
        digest = sha256_stream(file, partial(_tell, path, state.size))
        if place is not None and is_settled and _State.of(file.fileno()) == state:
            _keep(place, _Record(str(path.absolute()), state, digest))
    return digest


def _tell(path: Path, size: int, read: int) -> None:
    watcher = _watcher.get()
    if watcher is not None:
        watcher(path, read, size)


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
        if not (stat.S_ISREG(found.st_mode) and _is_ours_alone(found) and _is_ours_alone(place.parent.stat())):
            return None
        return msgspec.json.decode(os.read(file, _MAX_RECORD_BYTES), type=_Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)


def _is_ours_alone(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS


def _keep(place: Path, record: _Record) -> None:
    """Where the cache cannot be written, the file is read again next time. Records of files that are gone go, too."""
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(record))
        finally:
            os.close(file)
        staged.replace(place)
        for other in place.parent.glob("*.json"):
            known = _known(other)
            if known is not None and not Path(known.path).exists():
                other.unlink()
