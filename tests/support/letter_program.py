"""`starsd-edge` with the numpy engine in the place of every graph: `python -m tests.support.letter_program COMMAND`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

from starsd_edge.children import end_with_parent
from starsd_edge.cli.main import main
from starsd_jetson import target
from tests.support.prefix_engine import PrefixEngine

CONTEXT = 10**6
"""So long that no answer reaches its end before a test has looked at it."""


def start(*arguments: object) -> subprocess.Popen[str]:
    """Such a process, which ends with this one; its standard output and error are pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.letter_program", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=end_with_parent,
    )


def run() -> NoReturn:
    """What the process does."""
    target.open_engine = lambda *arguments, **named: PrefixEngine(1, max_context=CONTEXT)  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    run()
