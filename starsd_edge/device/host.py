"""Where facts about a machine come from: files below a root, and commands. Tests give a tree of their own for both."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command and gives its standard output; None where it is not there, fails or takes too long."""
COMMAND_S = 5.0
"""A tool that waits for a driver which does not answer must not hold up the rest."""


def run_command(command: Sequence[str]) -> str | None:
    """Of this machine; see `Runner`."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def name_of_target(given: str | None = None) -> str:
    """What a target is called, as text that can be sent: the given name, else this machine's."""
    return (given or socket.gethostname()).encode(errors="replace").decode() or "target"


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        root: directory in the place of /.
        run: runs its commands.
    """

    root: Path = Path("/")
    run: Runner = run_command

    def read(self, path: str | Path) -> str | None:
        """Text of a small file of the kernel, by its path below the root; None where it cannot be read."""
        return read(self.root / path)

    def number(self, path: str | Path) -> int | None:
        """The same, as a number; None where it is none."""
        text = self.read(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        return (self.root / path).exists()

    def find(self, pattern: str) -> list[Path]:
        """Paths below the root, in alphabetical order."""
        return sorted(path.relative_to(self.root) for path in self.root.glob(pattern))


def read(path: Path) -> str | None:
    """Text of a file without its last line break; None where it is empty or cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \n") or None
    except OSError:
        return None


_KIB = 1024


@dataclass(frozen=True)
class HostMemory:
    """In bytes.

    Attributes:
        total, free: of all, and what can be had without swapping.
        swap: in all.
    """

    total: int
    free: int
    swap: int


def read_memory(host: Host) -> HostMemory | None:
    """None where the kernel does not tell."""
    text = host.read("proc/meminfo") or ""
    found = {name: _KIB * int(count) for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "MemTotal" not in found:
        return None
    return HostMemory(found["MemTotal"], found.get("MemAvailable", found.get("MemFree", 0)), found.get("SwapTotal", 0))
