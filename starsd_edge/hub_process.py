"""A hub in a process of its own: for programs that embed one, for the demo and for benchmarks.

What the program starts for itself is told all by arguments; the user's configuration is for what the user starts.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urlsplit

import msgspec

from starsd_edge import CONFIG_VARIABLE, VARIABLE_PREFIX
from starsd_edge.bundles.cache import CACHE_VARIABLE
from starsd_edge.children import end_with_parent
from starsd_edge.errors import StarsdError
from starsd_edge.telemetry.hub_facts import HubFacts

PROGRAM = (sys.executable, "-m", "starsd_edge.cli")
_START_S = 120.0  # loading a draft model from a slow disk
_GRACE_S = 5.0  # from asking a process to end until it is killed


def start_hub(
    *bundles: str | Path,
    host: str = "127.0.0.1",
    port: int = 0,
    key_file: str | Path | None = None,
    device: str | None = None,
    options: Sequence[str] = (),
) -> RunningHub:
    """Start a hub in a process of its own; close it, or use it as a context manager. It ends with this process.

    Args:
        bundles: directories or names of bundles to draft with; without one it drafts by n-grams.
        host: address to listen on; any other than a loopback one demands a key.
        port: 0 takes a free one.
        key_file: file with the key that targets have to show.
        device: where it runs heads: "auto", "cpu" or "cuda"; None leaves it to the program.
        options: more options of `starsd-edge run-draft`, as on the command line.

    Raises:
        StarsdError: it does not start; the line says why.
    """
    said: list[str] = [*map(str, bundles), "--host", host]
    if key_file is not None:
        said += ["--token-file", str(key_file)]
    if device is not None:
        said += ["--device", device]
    return RunningHub([*PROGRAM, "run-draft", *said, *options, "--port", str(port)])


class RunningHub:
    """A hub that was started here.

    Attributes:
        url: its ws:// address.

    Raises:
        StarsdError: it does not start; the line says why.
    """

    def __init__(self, command: Sequence[str]) -> None:
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=own_environment(),
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )
            try:
                self.url = _address(self._process, log)
            except BaseException:
                self.close()
                raise

    def status(self) -> HubFacts:
        """What `/status` shows, of a hub that asks for no key.

        Raises:
            StarsdError: it does not answer.
        """
        return read_status(self.url)

    def close(self) -> None:
        """End it; targets go on by themselves."""
        _end(self._process)

    def __enter__(self) -> RunningHub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def hub_process(arguments: Sequence[str], program: Sequence[str] = PROGRAM) -> Iterator[str]:
    """A hub with these arguments of `run-draft` on a free loopback port, for as long as a demo or a bench needs it; its
    ws:// address.

    Args:
        program: what `starsd-edge` is.

    Raises:
        StarsdError: it does not start; the line says why.
    """
    with RunningHub([*program, "run-draft", *arguments, "--port", "0"]) as hub:
        yield hub.url


def own_environment() -> dict[str, str]:
    """The environment of a process that the program starts for itself: this one's without the user's settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == CACHE_VARIABLE or not name.startswith(VARIABLE_PREFIX)
    }
    return {**kept, CONFIG_VARIABLE: os.devnull}


def _address(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """The address in the line with which a hub says that it listens."""
    line = _first_line(process, time.monotonic() + _START_S)
    address = next((word for word in line.split() if word.startswith("ws://")), None)
    if address is None:
        raise StarsdError(f"the hub did not start: {_last_words(log) or 'it gave no reason'}")
    return address


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    """What it writes first, up to the end of the line or of the output."""
    assert process.stdout is not None  # noqa: S101 (it was asked for)
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise StarsdError(f"the hub did not start within {_START_S:.0f} s: try `starsd-edge run-draft`")
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            break
        line += piece
    return line.decode(errors="replace")


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.strip()), "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and insist."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 24
_OK = 200


def read_status(url: str) -> HubFacts:
    """The facts of the hub at this ws:// address on this machine.

    Raises:
        StarsdError: it does not answer, or with something else.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        body = answer.read(_MAX_BYTES)
        if answer.status != _OK:
            raise StarsdError(f"the hub at {url} gives no status: {answer.status} {answer.reason}")
        return msgspec.json.decode(body, type=HubFacts)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise StarsdError(f"the hub at {url} gives no status: {error or type(error).__name__}") from None
    finally:
        connection.close()
