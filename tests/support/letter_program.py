"""`starsd-edge` with the numpy engine in the place of every graph: `python -m tests.support.letter_program COMMAND`."""

from __future__ import annotations

from typing import NoReturn

from starsd_edge.cli.main import main
from starsd_jetson import target
from tests.support.prefix_engine import PrefixEngine

CONTEXT = 10**6
"""So long that no answer reaches its end before a test has looked at it."""


def run() -> NoReturn:
    """What the process does."""
    target.open_engine = lambda *arguments, **named: PrefixEngine(1, max_context=CONTEXT)  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    run()
