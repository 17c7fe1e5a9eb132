"""What of starsd-edge runs on this machine: each command that stays writes a small file into the cache.

A file is locked by its process for as long as that lives, however it ends: a file that can be locked belongs to nobody
and is removed. So no process number has to be trusted, and containers that share a cache see each other's commands. The
file says which command, which bundles and which address, never a prompt and never a secret. Where the cache cannot be
written, commands run all the same and are not listed.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from starsd_edge.bundles.cache import known_cache

_MAX_BYTES = 1 << 16
_MAX_FILES = 4096


class RunningCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs.

    Attributes:
        pid: its process, as that itself sees it: a container counts for itself.
        pids: what counts there, `pid_namespace()`.
        command: its words, "run-draft".
        bundles: directories that it reads, without links.
        model: what it makes a bundle of, as the user named it; "" where it makes none.
        place: where it listens; "" for nowhere.
        hub: whom it asks; "" for none.
        since: seconds since 1970.
    """

    pid: int
    pids: str = ""
    command: str
    bundles: list[str] = []
    model: str = ""
    place: str = ""
    hub: str = ""
    since: float


def running_dir() -> Path | None:
    """Directory of these files; None where there is no cache."""
    cache = known_cache()
    return None if cache is None else cache / "running"


_open_records: list[Path] = []
"""Of this process: a command that runs another one is listed once, as itself."""


@contextmanager
def listed(
    command: str,
    bundles: Iterable[Path] = (),
    *,
    model: str = "",
    place: str = "",
    hub: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[None]:
    """Have this command listed while the block runs; arguments as of `RunningCommand`.

    Args:
        hub: also one that was not checked yet, of which a secret is left out.
    """
    directory = running_dir()
    if directory is None or _open_records:
        yield
        return
    record = RunningCommand(
        pid=os.getpid(),
        pids=pid_namespace(),
        command=command,
        bundles=[_without_links(path) for path in bundles],
        model=model,
        place=place,
        hub=_without_secrets(hub or ""),
        since=clock(),
    )
    with _written(directory, msgspec.json.encode(record)):
        yield


@contextmanager
def _written(directory: Path, data: bytes) -> Iterator[None]:
    path = directory / f"{secrets.token_hex(8)}.json"
    staged = path.with_suffix(".new")
    file = _new_file(staged)
    if file is None:
        yield
        return
    try:
        with suppress(OSError):  # a full disk
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, data)
            staged.rename(path)
        _open_records.append(path)
        yield
    finally:
        if path in _open_records:
            _open_records.remove(path)
        for name in (staged, path):
            with suppress(OSError):
                name.unlink()
        os.close(file)
        with suppress(OSError):  # other commands are listed there
            directory.rmdir()


def _new_file(path: Path) -> int | None:
    """Its descriptor; None where the cache cannot be written."""
    for _ in range(3):  # another command that ends may remove the directory in between
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        except OSError:
            break
    return None


def running_commands() -> list[RunningCommand]:
    """All that run, the oldest first; what dead ones left is removed."""
    directory = running_dir()
    if directory is None or not directory.is_dir():
        return []
    files = [path for path, _ in zip(directory.glob("*.json"), range(_MAX_FILES), strict=False)]
    found = [record for path in files if (record := _read(path)) is not None]
    return sorted(found, key=lambda record: record.since)


def _read(path: Path) -> RunningCommand | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it ended just now, or is another user's
        return None
    try:
        if path not in _open_records:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                return None
        return msgspec.json.decode(os.read(file, _MAX_BYTES), type=RunningCommand)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)


def users_of(bundle: Path) -> list[RunningCommand]:
    """Commands that read this bundle."""
    place = _without_links(bundle)
    return [record for record in running_commands() if place in record.bundles]


def pid_namespace() -> str:
    """Processes of two namespaces can have one number; "" where the kernel does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _without_links(path: Path) -> str:
    return os.path.realpath(path)


def _without_secrets(address: str) -> str:
    """Scheme, host and port: what else stands in an address may be a secret, also in one that is refused."""
    scheme, mark, rest = address.rpartition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}{mark}{host.rpartition('@')[2]}"
