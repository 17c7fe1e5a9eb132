"""Hubs and targets as processes of their own, as users run them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starsd_edge.children import end_with_parent

DEADLINE_S = 180.0
"""A hang guard; nothing is decided by how long a thing takes."""


class Process:
    """A `starsd-edge` command whose standard output is read line by line as it comes."""

    def __init__(self, arguments: Sequence[object]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "starsd_edge.cli", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=end_with_parent,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def line(self) -> str | None:
        """The next line of standard output, None at its end."""
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
            self._readers[1].join(DEADLINE_S)
        return "".join(self._errors)

    def kill(self) -> None:
        """End it at once, also while it is stopped."""
        self._child.kill()
        self._child.wait(DEADLINE_S)

    def _read_out(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put(None)

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


@contextmanager
def running(process: Process) -> Iterator[Process]:
    """Kill it at the end, whatever happened."""
    try:
        yield process
    finally:
        process.send(signal.SIGCONT)
        process.kill()


def target(bundle: Path, *arguments: object) -> Process:
    """A `run-target`."""
    return Process(["run-target", bundle, "--threads", 1, *arguments])
