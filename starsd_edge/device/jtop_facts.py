"""What jtop's service tells that files do not: a process of its own asks it, so that a service that hangs or a version
of another form costs its facts and nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from starsd_edge.device.host import Host

SOCKET = "run/jtop.sock"
_KILO = 1000
COMMAND = (sys.executable, "-m", __name__)


class JtopFacts(msgspec.Struct, frozen=True):
    """None and 0 for what is not told."""

    mode_id: int | None = None
    mode_name: str = ""
    emc_hz: int = 0
    emc_most_hz: int = 0


def read_jtop(host: Host) -> JtopFacts | None:
    """Its facts; None where no service runs or its Python module is not installed."""
    if not host.exists(SOCKET):
        return None
    try:
        return msgspec.json.decode(host.run(COMMAND) or "", type=JtopFacts)
    except msgspec.DecodeError:
        return None


def ask(load: Callable[[str], Any] = importlib.import_module) -> JtopFacts:
    """Connect to the service and read what it has now.

    Raises:
        Exception: whatever the module raises where it cannot be used.
    """
    with load("jtop").jtop() as jetson:
        jetson.ok()
        mode, memory = jetson.nvpmodel, jetson.memory
        emc = memory.get("EMC", {}) if memory else {}
        return JtopFacts(
            mode_id=None if mode is None else int(mode.id),
            mode_name="" if mode is None else str(mode.name),
            emc_hz=_KILO * int(emc.get("cur", 0)),
            emc_most_hz=_KILO * int(emc.get("max", 0)),
        )


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(ask()).decode())
