"""The two libraries that build engines: TensorRT (on the device that runs them) and TensorRT-RTX (anywhere)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starsd_edge.errors import UsageError

ENGINES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Names of `--engine`, and the Python module of each."""
COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""Kinds of GPU that TensorRT-RTX builds for without one."""
_HOW_TO_GET = {
    "tensorrt": "it comes with JetPack (make the virtual environment with --system-site-packages, with the system's "
    "own Python), or from NVIDIA's package index",
    "tensorrt-rtx": "pip install 'starsd-edge[tensorrt-rtx]' (about 100 MB, under NVIDIA's own licence)",
}
_OLDEST = {"tensorrt": (10, 3), "tensorrt-rtx": (1, 4)}
_VERSION_PARTS = 4


@dataclass(frozen=True)
class Library:
    """One of them, imported.

    Attributes:
        engine: its name for `--engine`.
        module: the Python module.
        version: all four parts.
    """

    engine: str
    module: Any
    version: str

    @property
    def is_rtx(self) -> bool:
        """Whether it builds ahead of time, without a GPU."""
        return self.engine == "tensorrt-rtx"

    def __str__(self) -> str:
        return f"{'TensorRT-RTX' if self.is_rtx else 'TensorRT'} {self.version}"


def open_library(engine: str, load: Callable[[str], Any] = importlib.import_module) -> Library:
    """Import a library.

    Args:
        engine: a name of `ENGINES`.
        load: imports a module by its name.

    Raises:
        UsageError: not installed, incomplete, or of a version that this program was not made for.
    """
    name = ENGINES[engine]
    try:
        module = load(name)
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "is not installed" if missing else f"cannot be loaded ({' '.join(str(error).split())[:200]})"
        raise UsageError(
            f"--engine {engine} needs the Python module {name}, which {why}: {_HOW_TO_GET[engine]}"
        ) from None
    if not hasattr(module, "Builder"):
        # An empty directory of that name is a module too, and packages of type stubs leave one.
        raise UsageError(f"the Python module {name} that is installed holds no builder: {_HOW_TO_GET[engine]}")
    version = str(module.__version__)
    parts = version.split(".")
    if len(parts) < _VERSION_PARTS or not all(part.isdigit() for part in parts[:_VERSION_PARTS]):
        raise UsageError(f"{name} gives its version as {version!r}, and an engine is bound to all four parts of it")
    if tuple(map(int, parts[:2])) < _OLDEST[engine]:
        oldest = ".".join(map(str, _OLDEST[engine]))
        raise UsageError(f"{name} {version} is too old: engines are built by {oldest} and newer; {_HOW_TO_GET[engine]}")
    return Library(engine, module, version)
