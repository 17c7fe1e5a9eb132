"""Hubs and targets as processes of their own, as users run them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from starsd_edge.bundles.bundle import Bundle
from starsd_edge.children import end_with_parent

DEADLINE_S = 180.0
"""A hang guard; nothing is decided by how long a thing takes."""


AHEAD = 20
"""Lines that a paced process may at most have written and nobody read."""


class Process:
    """A `starsd-edge` command whose standard output is read line by line.

    Args:
        arguments: of the command.
        stdin: what it finds on standard input.
        paced: it stands still when it is `AHEAD` lines ahead of who reads, so that a test can act in the middle of an
            answer; otherwise it is read as it comes.
    """

    def __init__(self, arguments: Sequence[object], *, stdin: str = "", paced: bool = False) -> None:
        ours, theirs = socket.socketpair()
        if paced:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel makes it the least it allows
        ours.settimeout(DEADLINE_S)
        self._out = ours.makefile("r", encoding="utf-8")
        ours.close()  # `_out` keeps it open
        self._child = subprocess.Popen(
            [sys.executable, "-m", "starsd_edge.cli", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=end_with_parent,
        )
        theirs.close()
        assert self._child.stdin is not None
        with self._child.stdin as pipe:
            pipe.write(stdin)
        self._errors: list[str] = []
        self._lines: queue.Queue[str | None] | None = None
        self._error_reader = threading.Thread(target=self._read_err, daemon=True)
        self._error_reader.start()
        if not paced:
            self._lines = queue.Queue()
            threading.Thread(target=self._read_out, args=(self._lines,), daemon=True).start()

    def line(self) -> str | None:
        """The next line of standard output, None at its end."""
        if self._lines is None:
            return self._out.readline() or None
        return self._lines.get(timeout=DEADLINE_S)

    def records(self) -> Iterator[dict[str, Any]]:
        """The JSON objects on standard output, as they come."""
        while (line := self.line()) is not None:
            yield json.loads(line)

    def send(self, signal_number: int) -> None:
        """Send a signal."""
        self._child.send_signal(signal_number)

    def wait(self) -> int:
        """The exit code."""
        return self._child.wait(DEADLINE_S)

    @property
    def errors(self) -> str:
        """What is on standard error so far; all of it once the process has ended."""
        if self._child.poll() is not None:
            self._error_reader.join(DEADLINE_S)
        return "".join(self._errors)

    def kill(self) -> None:
        """End it at once, also while it is stopped."""
        self._child.kill()
        self._child.wait(DEADLINE_S)

    def _read_out(self, lines: queue.Queue[str | None]) -> None:
        with contextlib.suppress(OSError):  # it ended with something unread
            for line in self._out:
                lines.put(line)
        lines.put(None)

    def _read_err(self) -> None:
        assert self._child.stderr is not None
        self._errors.extend(iter(self._child.stderr.readline, ""))


class Hub(Process):
    """A `run-draft` that listens."""

    def __init__(self, *arguments: object, port: int = 0) -> None:
        super().__init__(["run-draft", *arguments, "--port", port, "--threads", 1])
        line = self.line()
        assert line is not None, self.errors
        self.url = line.split()[2]
        self.port = int(self.url.rsplit(":", 1)[1])

    def status(self) -> dict[str, Any]:
        """Its /status."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=DEADLINE_S) as answer:
            status: dict[str, Any] = json.load(answer)
        return status


Kind = TypeVar("Kind", bound=Process)


@contextmanager
def running(process: Kind) -> Iterator[Kind]:
    """Kill it at the end, whatever happened."""
    try:
        yield process
    finally:
        process.send(signal.SIGCONT)
        process.kill()


def target(bundle: Path, *arguments: object, stdin: str = "", paced: bool = False) -> Process:
    """A `run-target`."""
    return Process(["run-target", bundle, "--threads", 1, *arguments], stdin=stdin, paced=paced)


def ask(stack: ExitStack, bundle: Bundle, *arguments: object, stdin: str = "", paced: bool = False) -> Process:
    """A target that ends with the stack."""
    return stack.enter_context(running(target(bundle.path, *arguments, stdin=stdin, paced=paced)))


def start_hub(stack: ExitStack, *arguments: object, port: int = 0) -> Hub:
    """A hub that ends with the stack."""
    hub = Hub(*arguments, port=port)
    stack.enter_context(running(hub))
    return hub


def answers(process: Process) -> list[dict[str, Any]]:
    """What a process that ends well has printed."""
    found = list(process.records())
    assert process.wait() == 0, process.errors
    return found
