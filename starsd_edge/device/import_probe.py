"""What importing a module would give, tried in a process of its own: libraries of a GPU may end the one that tries."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import msgspec

from starsd_edge.device.host import Runner
from starsd_edge.errors import one_line

_LONGEST_ERROR = 200


class ProbedModule(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        version: as the module gives it.
        is_empty: it is a folder of that name and nothing else (a namespace package).
        paths: of its folders.
        error: why it cannot be imported; "" where it can.
    """

    version: str = ""
    is_empty: bool = False
    paths: list[str] = []
    error: str = ""


def probe_module(name: str, run: Runner) -> ProbedModule | None:
    """Try it.

    Args:
        run: runs the other process.

    Returns:
        None where nothing of that name is found.
    """
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return msgspec.json.decode(run([sys.executable, "-m", __name__, name]) or "", type=ProbedModule)
    except msgspec.DecodeError:
        return ProbedModule(error="the process that imports it ends, or takes too long")


def tried(name: str) -> ProbedModule:
    """Import it here."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return ProbedModule(error=one_line(error)[:_LONGEST_ERROR])
    paths = [str(path) for path in getattr(module, "__path__", ())]
    is_empty = getattr(module, "__file__", None) is None and not hasattr(module, "__version__")
    return ProbedModule(str(getattr(module, "__version__", "")), is_empty, paths)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(tried(sys.argv[1])).decode())
