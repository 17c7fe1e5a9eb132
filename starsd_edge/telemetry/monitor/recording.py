"""A feed in a file: one snapshot per line, as it came."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

from starsd_edge.errors import UsageError
from starsd_edge.telemetry.feed import MAX_SNAPSHOT_BYTES, FeedError, Snapshot, decode_snapshot, encode_snapshot

LONGEST_PAUSE_S = 5.0
"""Between two snapshots of a replay: what was a night in between need not be one now."""


class Recorder:
    """Writes snapshots. A context manager.

    Raises:
        UsageError: the file is there already, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("xb")
        except FileExistsError:
            raise UsageError(f"{path} is there already: choose another file for --record") from None
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}") from None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, snapshot: Snapshot) -> None:
        """Append one; it is in the file when this returns."""
        self._file.write(encode_snapshot(snapshot) + b"\n")
        self._file.flush()


async def replay(path: Path, speed: float, sleep: Callable[[float], Awaitable[None]]) -> AsyncGenerator[Snapshot, None]:
    """The snapshots of a file, as far apart as they were, divided by `speed`.

    Raises:
        UsageError: the file cannot be read, or a line of it is no snapshot; names the line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot replay {path}: {error.strerror}") from None
    with file:
        before: float | None = None
        number = 0
        while line := file.readline(MAX_SNAPSHOT_BYTES + 2):
            number += 1
            snapshot = _read(path, number, line)
            if before is not None:
                await sleep(min(max(0.0, snapshot.facts.uptime_s - before), LONGEST_PAUSE_S) / speed)
            before = snapshot.facts.uptime_s
            yield snapshot
        if before is None:
            raise UsageError(f"{path} is empty: record a feed with --record")


def _read(path: Path, number: int, line: bytes) -> Snapshot:
    try:
        return decode_snapshot(line.rstrip(b"\r\n"))
    except FeedError as error:
        raise UsageError(f"line {number} of {path}: {error}") from None
