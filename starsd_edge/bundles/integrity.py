"""Files that are whole or not there: hashes, and directories built aside and put in place by one rename.

A staging directory is locked (`flock` on the directory itself) by the process that builds it. The kernel lets go of the
lock when that process ends, however it ends, so a staging directory that can be locked is one whose maker is dead, and
the next writer removes it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from starsd_edge.errors import StarsdError, UsageError

_BLOCK = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_STAGING = ".staging-"


def sha256_file(path: Path) -> str:
    """sha256 hex digest of a file's bytes."""
    with path.open("rb", buffering=0) as file:
        return sha256_stream(file)


def sha256_stream(file: RawIOBase, told: Callable[[int], None] = lambda count: None) -> str:
    """sha256 hex digest of what can still be read of an open file.

    Args:
        told: takes the number of bytes that have been read so far, again and again.
    """
    digest, read = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BLOCK))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
        read += count
        told(read)
    return digest.hexdigest()


def hash_files(directory: Path) -> dict[str, str]:
    """sha256 hex digest of every file below a directory, by its relative POSIX name, in alphabetical order."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}


def require_free_space(directory: Path, needed: int, purpose: str) -> None:
    """Check the file system that holds a directory (which need not exist yet).

    Args:
        needed: bytes.

    Raises:
        StarsdError: fewer bytes than that are free.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise StarsdError(
            f"{purpose} needs {_megabytes(needed)} at {directory} and {_megabytes(free)} are free: "
            "free some space or set STARSD_CACHE to another disk"
        )


def require_replaceable(directory: Path, marker: str, what: str) -> None:
    """Check that a directory may give way to a new one: nobody who names one means its other files to go.

    Args:
        marker: name of the file that makes a directory one of these.
        what: what such a directory is.

    Raises:
        UsageError: it holds something else.
    """
    if directory.is_dir() and not (directory / marker).is_file() and any(directory.iterdir()):
        raise UsageError(f"{directory} holds files and no {what}: name a new directory, or empty this one first")


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """A directory to build in, that becomes `target` when the block ends without an error, and disappears otherwise.

    Everything is on disk (fsync) before the one rename that puts it in place. An existing directory is replaced whole.
    Staging directories that dead processes left beside the target are removed first.

    Raises:
        UsageError: the target is there and is no directory, or its parent cannot be written.
        OSError, StarsdError: the disk is full, or fails.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file: name a directory, or move the file away")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target)
        staging, lock = _make_staging(target)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise UsageError(f"cannot write to {target.parent}: {error.strerror}") from None
    try:
        yield staging
        _sync_tree(staging)
        _put_in_place(staging, target)
        _sync_directory(target.parent)
    except OSError as error:
        if error.errno is None:  # numpy does not say why it could not write an array
            raise StarsdError(f"the disk is full, or fails, at {target.parent} ({error}): free some space") from error
        raise
    finally:
        # After an exchange this is the old content; after a plain rename there is nothing left.
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; an older one stays until then."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        staged = Path(file.name)
        try:
            file.write(data)
            file.flush()
            staged.chmod(0o644)
            staged.replace(path)
        except BaseException:
            staged.unlink()
            raise


def _make_staging(target: Path) -> tuple[Path, int]:
    """A new, locked staging directory beside the target, and the descriptor that holds the lock."""
    while True:
        staging = target.parent / f"{_staging_prefix(target)}{secrets.token_hex(6)}"
        staging.mkdir(mode=0o755)
        try:
            lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another writer took it for a stale one before the lock
            continue
        if _try_lock(lock) and staging.exists():
            return staging, lock
        os.close(lock)


def abandoned_stagings(directory: Path) -> list[Path]:
    """Staging directories in this one whose makers are dead, in alphabetical order."""
    found = []
    for staging in sorted(directory.glob(f".*{_STAGING}*")):
        with _locked_if_abandoned(staging) as is_abandoned:
            if is_abandoned:
                found.append(staging)
    return found


def _remove_stale(target: Path) -> None:
    for staging in target.parent.glob(f"{_staging_prefix(target)}*"):
        with _locked_if_abandoned(staging) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked_if_abandoned(staging: Path) -> Iterator[bool]:
    """Whether its maker is dead; then nobody else can lock it inside."""
    try:
        lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(lock)
    finally:
        os.close(lock)


def _staging_prefix(target: Path) -> str:
    return f".{target.name}{_STAGING}"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _put_in_place(staging: Path, target: Path) -> None:
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _exchange(staging, target)


def _exchange(staging: Path, target: Path) -> None:
    """Swap two directories in one step, so that a reader finds the old or the new one and never none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(staging), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), str(target))
    _replace_in_two_steps(staging, target)


def _replace_in_two_steps(staging: Path, target: Path) -> None:
    """For file systems without an exchange: the old directory comes back if the new one cannot take its place."""
    old = target.parent / f"{_staging_prefix(target)}{secrets.token_hex(6)}"
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync_tree(directory: Path) -> None:
    for root, _, files in os.walk(directory):
        for name in files:
            _sync(Path(root) / name, os.O_RDONLY)
        _sync_directory(Path(root))


def _sync_directory(directory: Path) -> None:
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
