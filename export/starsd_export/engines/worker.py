"""`python -m starsd_export.engines.worker`: one build in a process of its own.

A builder takes gigabytes and gives them back when its process ends, and where it crashes it takes only that with it.
The order is one line of JSON on standard input; reports are lines of JSON on standard output. Standard input stays open
while the build is wanted: when it is closed, by whoever ordered the build or by the end of that process, the build
stops.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from starsd_edge.bundles.engine_manifest import EngineTensor
from starsd_edge.bundles.integrity import write_whole
from starsd_edge.errors import StarsdError
from starsd_export.engines.builder import BuildOrder, build_plan, open_library
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


if __name__ == "__main__":
    # Not through the interpreter's end: the watching thread holds standard input's lock.
    code = main()
    sys.stderr.flush()
    os._exit(code)
