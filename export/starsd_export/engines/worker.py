"""One build of an engine in a process of its own: `run_build` starts it and `python -m starsd_export.engines.worker` is
it.

A builder takes gigabytes and gives them back when its process ends, and where it crashes it takes only that with it.
The order is one line of JSON on standard input; reports are lines of JSON on standard output. Standard input stays open
while the build is wanted: when it is closed, by whoever ordered the build or by the end of that process, the build
stops.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import msgspec

from starsd_edge.bundles.engine_manifest import EngineTensor
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.errors import StarsdError
from starsd_export.engines.builder import BuildError, BuildOrder, build_plan, open_library
from starsd_export.engines.profiles import Shapes


class Order(msgspec.Struct, frozen=True):
    """What to build, and where the plan goes."""

    engine: str
    graph: str
    plan: str
    shapes: list[dict[str, tuple[list[int], list[int], list[int]]]]
    compute_capabilities: list[str]
    """Kinds of GPU that one plan shall serve; none takes this machine's."""
    timing_cache: str | None
    """Its file, which may not be there yet."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """One step of one phase is done."""

    phase: str
    done: int
    of: int


class Built(msgspec.Struct, frozen=True, tag="built"):
    """The last report of a build whose plan is written."""

    version: str
    tensors: list[EngineTensor]
    memory_bytes: int


class BuildFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The last report of a build that ended without an engine."""

    message: str
    exit_code: int


Report = Progress | Built | BuildFailed


def main() -> int:
    """Build what the line on standard input orders."""
    # Libraries write to standard output when they please.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    stop = _watch(sys.stdin.buffer)

    def send(report: Report) -> None:
        reports.write(msgspec.json.encode(report) + b"\n")

    try:
        send(_build(order, send, stop))
    except StarsdError as error:
        send(BuildFailed(str(error), error.exit_code))
        return error.exit_code
    except BrokenPipeError:
        return 1
    return 0


def _build(order: Order, send: Callable[[Report], None], stop: threading.Event) -> Built:
    library = open_library(order.engine)
    cache = Path(order.timing_cache) if order.timing_cache else None
    shapes: list[Shapes] = list(order.shapes)
    request = BuildOrder(Path(order.graph), shapes, order.compute_capabilities, _read(cache))

    def report(phase: str, done: int, of: int) -> None:
        if stop.is_set():
            return
        try:
            send(Progress(phase, done, of))
        except BrokenPipeError:  # an exception would go through the library's own code, which takes none
            stop.set()

    built = build_plan(library, request, report, stop.is_set)
    Path(order.plan).write_bytes(built.plan)
    if cache is not None and built.timing_cache is not None:
        _keep(cache, built.timing_cache)
    return Built(library.version, built.tensors, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def _read(cache: Path | None) -> bytes | None:
    if cache is None:
        return None
    try:
        return cache.read_bytes()
    except OSError:  # none yet, or one that is not to be read: the build measures again
        return b""


def _keep(cache: Path, content: bytes) -> None:
    """For the next build. The plan of this one is written, and does not need it."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache, content)
    except (OSError, StarsdError) as error:
        print(f"what this build measured is not kept for the next one: {error}", file=sys.stderr)


def _watch(orders: BinaryIO) -> threading.Event:
    """Set once standard input is closed."""
    closed = threading.Event()

    def wait() -> None:
        while orders.read(1):
            pass
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return closed


_COMMAND = (sys.executable, "-m", "starsd_export.engines.worker")
_STOPPING_SECONDS = 10.0
"""For a builder to come to the end of the step it is in, before it is killed."""
_LOG_END = 400


def run_build(order: Order, progress: Callable[[Progress], None], command: tuple[str, ...] = _COMMAND) -> Built:
    """Build in a process of its own. Whatever interrupts this call stops that process.

    Raises:
        StarsdError: what the builder said, or that its process ended without a word.
    """
    with tempfile.TemporaryFile() as log, _worker(command, log) as process:
        orders, reports = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            orders.write(msgspec.json.encode(order) + b"\n")
            orders.flush()
        except BrokenPipeError:
            raise _died(process, log) from None
        for line in reports:
            report = msgspec.json.decode(line, type=Report)
            if isinstance(report, Progress):
                progress(report)
            elif isinstance(report, BuildFailed):
                error = BuildError(report.message)
                error.exit_code = report.exit_code
                raise error
            else:
                return report
        raise _died(process, log)


@contextmanager
def _worker(command: tuple[str, ...], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # In a session of its own, where Ctrl-C does not reach it: closing its standard input stops it in order.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            try:
                cast("IO[bytes]", pipe).close()
            except BrokenPipeError:
                continue
        try:
            process.wait(_STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _died(process: subprocess.Popen[bytes], log: IO[bytes]) -> BuildError:
    code = process.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if code == -signal.SIGKILL:
        how += " (when memory runs out, the system does that)"
    log.seek(0)
    said = " ".join(log.read().decode(errors="replace").split())[-_LOG_END:]
    return BuildError(f"the builder's process {how} before the engine was built{': ' if said else ''}{said}")


if __name__ == "__main__":
    # Not through the interpreter's end: the watching thread holds standard input's lock.
    code = main()
    sys.stderr.flush()
    os._exit(code)
