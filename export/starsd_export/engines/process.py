"""Running `starsd_export.engines.worker`: its reports come back, and it ends when nobody waits for it any more."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

import msgspec

from starsd_edge.errors import StarsdError
from starsd_export.engines.builder import BuildError
from starsd_export.engines.worker import BuildFailed, Built, Order, Progress, Report

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
                raise _as_error(report)
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


def _as_error(report: BuildFailed) -> StarsdError:
    error = BuildError(report.message)
    error.exit_code = report.exit_code
    return error


def _died(process: subprocess.Popen[bytes], log: IO[bytes]) -> BuildError:
    code = process.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if code == -signal.SIGKILL:
        how += " (when memory runs out, the system does that)"
    log.seek(0)
    said = " ".join(log.read().decode(errors="replace").split())[-_LOG_END:]
    return BuildError(f"the builder's process {how} before the engine was built{': ' if said else ''}{said}")
