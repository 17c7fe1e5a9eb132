"""A command on a pseudo-terminal of 80x24, as a person has it in front of them."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from select import select

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(ROOT / place) for place in (".", "export", "server", "jetson"))
PATIENCE_S = 60


class Terminal:
    """Runs `python -m MODULE ARGUMENTS`.

    Args:
        environment: variables of the command beside those of the tests.
    """

    def __init__(self, *arguments: object, module: str = "starsd_edge.cli", **environment: str) -> None:
        self.controller, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(terminal)
        usual = {"PYTHONPATH": PATHS, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            env={**os.environ, **usual, **environment},
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # keys like Ctrl-C become signals
        )
        self.terminal = terminal
        self.shown = ""

    def until(self, wanted: Callable[[str], bool]) -> str:
        """Read until this is true of all that was shown since the last call, and give that."""
        self.shown = ""
        end = time.monotonic() + PATIENCE_S
        while not wanted(self.shown):
            ready, _, _ = select([self.controller], [], [], max(0.0, end - time.monotonic()))
            assert ready, self.shown[-3000:]
            self.shown += os.read(self.controller, 1 << 16).decode(errors="replace")
        return self.shown

    def press(self, keys: bytes) -> None:
        """Type this."""
        os.write(self.controller, keys)

    def interrupt(self) -> None:
        """Press Ctrl-C once the command sleeps: Python's readline misses one between its prompt and its waiting."""
        end = time.monotonic() + PATIENCE_S
        while self._state() != "S":
            assert time.monotonic() < end, "it never waits"
            time.sleep(0.001)
        self.press(b"\x03")

    def _state(self) -> str:
        # The name in parentheses may hold anything; the state follows its last parenthesis.
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> int:
        """Its exit code; the terminal must be as it was."""
        try:
            code = self.process.wait(PATIENCE_S)
            assert termios.tcgetattr(self.terminal) == self.before
            return code
        finally:
            self.process.kill()
            os.close(self.controller)
            os.close(self.terminal)
